"""What goes wrong with chat templates: not applied, not all of it, or not as Jinja does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.parity.faults.tokenizer.formats import FORMATS
from lockstep.parity.faults.tokenizer.texts import contents

HELPFUL = "You are a helpful assistant."
MARK = "\ue0f1"


def chat(change: Callable[[Any, Any], Any]) -> Edit:
    """Change messages, variables or the template; a prompt that is no chat has none."""
    return Edit("chat", lambda found, p: change(found, p) if hasattr(found, "messages") else None)


def written(make: Callable[[list[dict[str, Any]]], str], *, specials: bool = False) -> Edit:
    """Write the text without the template."""

    def change(found: Any, prompt: Any) -> Any:
        from lockstep.parity.chain.prompt import Rendered

        if not all(isinstance(one.get("content"), str) for one in found.messages):
            return None
        return Rendered(make(found.messages), specials=specials)

    return chat(change)


def with_variable(name: str, value: object) -> Edit:
    return chat(lambda found, p: replace(found, variables={**found.variables, name: value}))


def with_system(found: Any, said: str) -> Any:
    if found.messages[0].get("role") == "system":
        return None
    return replace(found, messages=[{"role": "system", "content": said}, *found.messages])


def without_system(found: Any, prompt: Any) -> Any:
    rest = [one for one in found.messages if one.get("role") != "system"]
    return replace(found, messages=rest) if rest and rest != found.messages else None


def system_last(found: Any, prompt: Any) -> Any:
    """Put the system message behind the first one of the user."""
    if len(found.messages) < 2 or found.messages[0].get("role") != "system":
        return None
    first, second, *rest = found.messages
    return replace(found, messages=[second, first, *rest])


def without_default(found: Any, prompt: Any) -> Any:
    """Leave out the system turn that the template writes by itself.

    What stands in front of a system message shows how a turn begins; the second such beginning is
    that of the user's turn.
    """
    from lockstep.parity.chain.prompt import Rendered

    marked = with_system(found, MARK)
    if marked is None:
        return None
    before, here, _ = prompt.render(marked).partition(MARK)
    opener = prompt.backend.encode(before, add_special_tokens=False).tokens if here else []
    said = prompt.render(found)
    starts = [] if not opener else [at.start() for at in re.finditer(re.escape(opener[0]), said)]
    if len(starts) < len(found.messages) + 1 + bool(
        found.variables.get("add_generation_prompt", 1)
    ):
        return None
    return Rendered(said[: starts[0]] + said[starts[1] :], specials=False)


def with_template(change: Callable[[str], str]) -> Edit:
    """Change the source of the template."""

    def changed(found: Any, prompt: Any) -> Any:
        new = change(found.template)
        return None if new == found.template else replace(found, template=new)

    return chat(changed)


def untrimmed(source: str) -> str:
    return re.sub(r"\s*\|\s*trim\b|\.strip\(\)", "", source)


def keeping_lines(source: str) -> str:
    """Let the line feed behind a block stay: `+%}` says so to Jinja."""
    return re.sub(r"(?<![-+])([%#]\})", r"+\1", source)


def keeping_spaces(source: str) -> str:
    """Let the spaces before a block stay: `{%+` says so."""
    return re.sub(r"(\{[%#])(?![-+])", r"\1+", source)


def rendered(change: Callable[[str], str]) -> Edit:
    """Change what the template wrote."""

    def changed(found: Any, prompt: Any) -> Any:
        from lockstep.parity.chain.prompt import Rendered

        return Rendered(change(prompt.render(found)), specials=False)

    return chat(changed)


MISTAKES = (
    Mistake(
        id="generation-prompt-newline",
        wrong="not all of the header of the answer, or turns in another order",
        right="the template, to its last line feed",
        symptom="the model first writes a line feed or `assistant`, or goes on with the question",
        where="tokens",
        fix="end the prompt as the template does with add_generation_prompt, line feed included",
        evidence=("https://unsloth.ai/blog/gemma-bugs",),
        variants={
            "its last line feed left out": rendered(lambda said: said.removesuffix("\n")),
            "all of it left out": with_variable("add_generation_prompt", False),
            "a line feed too many": rendered(lambda said: said + "\n"),
            "the system turn behind the user's": chat(system_last),
        },
    ),
    Mistake(
        id="chat-template-missing",
        wrong="the bare text",
        right="the text in the turns of the chat template",
        symptom="the model continues the question instead of answering",
        where="tokens",
        fix="render the messages with the model's chat template",
        variants={
            "the last message": written(lambda said: said[-1]["content"], specials=True),
            "all messages": written(
                lambda said: "\n".join(one["content"] for one in said), specials=True
            ),
        },
    ),
    Mistake(
        id="chat-template-of-another-model",
        wrong="the turns of another family",
        right="the model's own chat template",
        symptom="answers that ramble, or end in markers spelt out",
        where="tokens",
        fix="render the messages with the model's own chat template",
        variants={name: written(make) for name, make in FORMATS.items()},
    ),
    Mistake(
        id="system-prompt-default",
        wrong="another system turn than the template writes when none is given",
        right="the template's own",
        symptom="another tone, another name, refusals that differ",
        where="tokens",
        fix="give the template the messages as they are, and let it write its system turn or none",
        variants={
            "the template's left out": chat(without_default),
            "a helpful assistant": chat(lambda found, p: with_system(found, HELPFUL)),
            "an empty one": chat(lambda found, p: with_system(found, "")),
            "the given one left out": chat(without_system),
        },
    ),
    Mistake(
        id="thinking-flag",
        wrong="enable_thinking of another value",
        right="enable_thinking as it is said, or not given",
        symptom="the model thinks where it should not, or the reverse",
        where="tokens",
        fix="give the template enable_thinking only where the reference does",
        variants={
            "off": with_variable("enable_thinking", False),
            "on": with_variable("enable_thinking", True),
        },
    ),
    Mistake(
        id="template-content-trim",
        wrong="a message with, or without, the spaces at its ends",
        right="as the template has it: `| trim` or not",
        symptom="another token at the borders of a turn",
        where="tokens",
        fix="strip a message where the template does, and only there",
        variants={
            "stripped": contents(str.strip),
            "not stripped": with_template(untrimmed),
        },
    ),
    Mistake(
        id="template-whitespace",
        wrong="Jinja with its own defaults",
        right="Jinja with trim_blocks and lstrip_blocks",
        symptom="line feeds and spaces between the turns that nobody wrote",
        where="tokens",
        fix="render with trim_blocks=True and lstrip_blocks=True, as transformers does",
        variants={
            "neither": with_template(lambda source: keeping_spaces(keeping_lines(source))),
            "trim_blocks off": with_template(keeping_lines),
            "lstrip_blocks off": with_template(keeping_spaces),
        },
    ),
)
