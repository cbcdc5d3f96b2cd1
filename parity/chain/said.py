"""What a port says of its run besides tensors: the prompt, its settings, what it chose."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.parity.dumps.dump import Dump
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.scheduling.sampling_options import COLDEST, SamplingOptions
from lockstep.reference.tokenizer.tokenizer import Message

PLACE = "__metadata__"
NUMBERS = (
    "temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
COUNTS, FLAGS = ("top_k", "penalty_window", "max_new_tokens"), ("do_sample", "ignore_eos")
LOOP = ("max_new_tokens", "do_sample", "ignore_eos")  # what a sampler does not see
SETTINGS = (*NUMBERS, *COUNTS, *FLAGS, "logit_bias", "semantics")
MOST = 2**63 - 1  # JSON has numbers of any length
WHOLE = re.compile(r"[0-9]{1,18}")
OURS = ("self", "messages")  # no variables of a template: we give them


@dataclass(frozen=True)
class Said:
    """The words of a port. What it does not say is None.

    `messages` are those of a chat, else `text` is a plain prompt; `variables` are what else the
    template was given. `fed` went in after the prompt, `answer` is what was handed out.
    """

    path: Path
    text: str | None
    messages: list[Message] | None
    variables: dict[str, Any]
    tokens: list[int] | None
    fed: list[int] | None
    answer: list[int]
    own_answer: bool
    uniforms: list[float] | None
    settings: dict[str, Any] | None

    @property
    def chooses(self) -> bool:
        """Say whether the answer is the port's own choice, and not what it was given to eat."""
        return bool(self.answer) and (self.own_answer or self.settings is not None)

    @property
    def fed_else(self) -> tuple[int, ...] | None:
        """Return what was fed, if that is not the answer."""
        return None if self.fed is None else tuple(self.fed)

    @property
    def has_prompt(self) -> bool:
        return self.text is not None or self.messages is not None


def said_by(
    dump: Dump,
    *,
    tokens: list[int] | None = None,
    prompt: str | None = None,
    chat: bool = False,
) -> Said:
    """Return what a dump says, and what is said for it. A bare dump may mean anything by its keys.

    Raises: InputError for a key that is not what the format has it to be.
    """
    about = dump.about if dump.is_trace or not dump.shapes else {}
    messages, variables = chat_of(about, dump.path)
    text = about.get("prompt") if prompt is None else prompt
    if messages is None and text is not None and (chat or variables is not None):
        messages = [{"role": "user", "content": text}]
    return Said(
        path=dump.path,
        text=text,
        messages=messages,
        variables=variables or {},
        tokens=dump.tokens if tokens is None else tokens,
        fed=dump.decoded if dump.decoded and (dump.shapes or "generated" in about) else None,
        answer=(dump.ids("generated") if "generated" in about else None) or dump.decoded,
        own_answer="generated" in about or not dump.shapes,
        uniforms=uniforms_of(about, dump.path),
        settings=settings_of(about, dump.path),
    )


def chat_of(
    about: Mapping[str, str], path: Path
) -> tuple[list[Message] | None, dict[str, Any] | None]:
    """Return messages and variables of a chat; variables are None if it is none."""
    messages, chat = value_of(about, "messages", path), value_of(about, "chat", path)
    if messages is not None and not is_chat(messages):
        raise refused(path, "messages", "a JSON list of objects with role and content", about)
    if chat is not None and not isinstance(chat, bool | dict):
        raise refused(path, "chat", "true, false or a JSON object of what the template is given",
                      about)  # fmt: skip
    taken = next((name for name in OURS if isinstance(chat, dict) and name in chat), None)
    if taken is not None:
        raise InputError(path, f"chat may not give its template {show(taken)}", PLACE)
    variables = chat if isinstance(chat, dict) else {} if chat or messages else None
    return messages, variables


def is_chat(messages: Any) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages)
    )


def uniforms_of(about: Mapping[str, str], path: Path) -> list[float] | None:
    found = value_of(about, "uniforms", path)
    if found is None:
        return None
    if not isinstance(found, list) or not all(is_number(u) and 0 <= u < 1 for u in found):
        raise refused(path, "uniforms", "a JSON list of numbers from 0 to below 1", about)
    return [float(u) for u in found]


def settings_of(about: Mapping[str, str], path: Path) -> dict[str, Any] | None:
    found = value_of(about, "sampling", path)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise refused(path, "sampling", "a JSON object of settings", about)
    for name, value in found.items():
        if name not in SETTINGS:
            raise InputError(path, f"sampling has {show(name)}, but may have {', '.join(SETTINGS)}",
                             PLACE)  # fmt: skip
        check_setting(name, value, path)
    if "logit_bias" in found:
        found["logit_bias"] = pairs_of(found["logit_bias"], path)
    try:
        SamplingOptions(**{name: one for name, one in found.items() if name not in LOOP})
    except InputError as error:
        raise InputError(path, f"sampling: {error.what}", PLACE) from None
    return found


def temperature_of(settings: Mapping[str, Any] | None) -> float:
    """Return the temperature that settings mean: 1 if it is drawn and none is given."""
    said = settings or {}
    if said.get("do_sample") is False:
        return 0.0
    return said.get("temperature", 1.0 if said.get("do_sample") else 0.0)


def check_setting(name: str, value: Any, path: Path) -> None:
    """Raise InputError for a value of another kind than a setting is of."""
    if name == "logit_bias":
        return  # `pairs_of` takes it apart
    if name == "semantics":
        good, wanted = isinstance(value, str), "the name of an engine"
    elif name in FLAGS:
        good, wanted = isinstance(value, bool), "true or false"
    elif name in COUNTS:
        whole = is_number(value) and isinstance(value, int)
        good, wanted = whole and 0 <= value <= MOST, "a whole number below 2^63"
    else:
        good, wanted = is_number(value) and -MOST <= value <= MOST, "a number below 2^63"
    if good and name == "repetition_penalty":
        good, wanted = value >= COLDEST, f"{COLDEST} or more"
    if not good:
        what = f"{name} of sampling is {show(value, 40)}, but should be {wanted}"
        raise InputError(path, what, PLACE)


def pairs_of(value: Any, path: Path) -> tuple[tuple[int, float], ...]:
    """Return what is added to the logits of which ids: {"id": number}, where false bans the id."""
    wanted = 'a JSON object of token ids and numbers, or false: {"13": -2.5, "9": false}'
    if not isinstance(value, dict):
        what = f"logit_bias of sampling is {show(value, 40)}, but should be {wanted}"
        raise InputError(path, what, PLACE)
    pairs: list[tuple[int, float]] = []
    for id, added in value.items():
        fits = added is False or (is_number(added) and -MOST <= added <= MOST)
        if not WHOLE.fullmatch(id) or not fits:
            what = f"logit_bias of sampling has {show(id, 24)}: {show(added, 24)}, but should be "
            raise InputError(path, what + wanted, PLACE)
        pairs.append((int(id), -math.inf if added is False else float(added)))
    return tuple(pairs)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_of(about: Mapping[str, str], key: str, path: Path) -> Any:
    """Return the JSON that a key holds, None without the key."""
    if key not in about:
        return None
    try:
        return json.loads(about[key])
    except (ValueError, RecursionError):
        raise refused(path, key, "JSON", about) from None


def refused(path: Path, key: str, wanted: str, about: Mapping[str, str]) -> InputError:
    return InputError(path, f"{key} must be {wanted}, not {show(about[key], 40)}", PLACE)
