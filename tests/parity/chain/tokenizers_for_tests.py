"""Tokenizers of the two families, with templates in which something can go wrong."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.parity.chain.fitting import Fit
from lockstep.parity.chain.prompt import Prompt
from lockstep.parity.chain.tokenizing import fitting
from lockstep.parity.faults.around import mistakes
from lockstep.reference.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.reference.tokenizer.conftest import (
    CHATML,
    added,
    byte_level_content,
    sentencepiece_content,
)  # fmt: skip

LINES = (
    "{% if messages[0].role != 'system' %}\n<|im_start|>system\nYou are Q.<|im_end|>\n{% endif %}\n"
    "{% for m in messages %}\n  {% if true %}\n<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "<|im_end|>\n  {% endif %}\n{% endfor %}\n"
    "{% if add_generation_prompt %}\n<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}\n<think>\n\n{% endif %}\n"
    "{% endif %}\n"
)
BRACKETS = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"


def made(content: dict, config: dict) -> Tokenizer:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokenizer.json").write_text(json.dumps(content))
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return load_tokenizer(folder)


@cache
def tokenizer(name: str) -> Tokenizer:
    """Return one of six, of which `lines` has a template with much in it.

    `borders` and `threes` have a BOS that they do not add, and tokens that a split decides about;
    `threes` splits digits as Llama 3 does.
    """
    if name == "llama":
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": BRACKETS}
        return made(sentencepiece_content(), tokens)
    content = byte_level_content()
    if name == "strips":
        content["added_tokens"][1] = {**added(262, "<|im_start|>"), "rstrip": True}
        content["model"]["merges"] = content["model"]["merges"][1:]
    if name in ("borders", "threes"):
        if name == "threes":
            split = content["pre_tokenizer"]["pretokenizers"][0]["pattern"]
            split["Regex"] = split["Regex"].replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
        for pair in (("1", "2"), ("o", ":"), ("12", "3"), ("Ġ", "Ġ"), ("'", "H")):
            content["model"]["vocab"]["".join(pair)] = len(content["model"]["vocab"])
            content["model"]["merges"].append([*pair])
        for at, one in enumerate(content["added_tokens"]):
            one["id"] = len(content["model"]["vocab"]) + at
        config = {"bos_token": "<|endoftext|>", "chat_template": CHATML}
        return made(content, config)
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return made(content, {**ends, "chat_template": LINES if name == "lines" else CHATML})


def prompt(name: str, said: str | list, **variables: object) -> Prompt:
    """Return a plain prompt of a text, a chat of messages."""
    if isinstance(said, str):
        return Prompt(tokenizer(name), text=said)
    return Prompt(tokenizer(name), messages=said, variables=variables)


def user(said: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": said}]


def system(said: str) -> dict[str, str]:
    return {"role": "system", "content": said}


def explained(which: Prompt, ids: list[int]) -> Fit | None:
    return fitting(which, ids, mistakes())


def names(fit: Fit | None) -> list[str]:
    return [] if fit is None else [one.mistake.id for one in fit.chosen]
