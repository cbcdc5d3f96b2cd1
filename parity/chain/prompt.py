"""From a prompt to token ids, step by step, so that each step can be done wrong.

chat: messages and a template. text: what the template wrote. file: tokenizer.json. backend: the
tokenizer made of it. encode: how pieces become tokens. ids: what is put in front and behind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from lockstep.parity.faults.mistake import Edit
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.settings import ChatTemplate
from lockstep.reference.tokenizer.tokenizer import Message, Tokenizer
from lockstep.reference.tokenizer.tokenizer_file import refusing_panics

LARGE = 20_000  # tokens; an altered tokenizer of a large vocabulary takes 100 MB


@dataclass(frozen=True)
class Chat:
    """Messages, what else the template is given, and the template itself."""

    messages: list[Message]
    variables: dict[str, Any]
    template: str


@dataclass(frozen=True)
class Rendered:
    """The text that is encoded. `specials` says whether the post-processor adds its own ids."""

    text: str
    specials: bool


class Prompt:
    """A text, or the messages of a chat, on their way to ids. Nothing of it changes."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        text: str | None = None,
        messages: list[Message] | None = None,
        variables: dict[str, Any] | None = None,
    ):
        self.tokenizer, self.text = tokenizer, text
        self.backend, self.settings = tokenizer.parts
        self.chat = None
        if messages is not None:
            template = template_of(tokenizer, messages, variables or {})
            self.path = template.path
            self.chat = Chat(messages, dict(variables or {}), template.source)
        self.built = lru_cache(4 if tokenizer.size > LARGE else 64)(self._build)
        self.rendered = lru_cache(256)(self._render)

    @cached_property
    def content(self) -> dict[str, Any]:
        """What the tokenizer.json says; an edit returns another one and leaves this as it is."""
        return json.loads(self.backend.to_str())

    def special(self, *names: str) -> list[int]:
        """Return the ids of special tokens by their names (`bos_token`), those that there are."""
        texts = [self.settings.special_tokens.get(name) for name in names]
        found = [self.backend.token_to_id(text) for text in texts if text is not None]
        return [number for number in found if number is not None]

    def render(self, chat: Chat) -> str:
        """Return what the template makes of a chat, in a process of its own."""
        return self.rendered(json.dumps([chat.messages, chat.variables, chat.template]))

    def ids(self, edits: Sequence[Edit] = ()) -> list[int] | None:
        """Return the ids, None if one of the edits has nothing to be wrong in.

        Raises: InputError where the prompt cannot be encoded.
        """
        by_step = {edit.step: [e for e in edits if e.step == edit.step] for edit in edits}
        found = self._text(by_step)
        if found is None:
            return None
        backend = self.built((*by_step.get("file", ()), *by_step.get("backend", ())))
        if backend is None:
            return None
        ways = by_step.get("encode", [])
        with refusing_panics(self.tokenizer.path, "cannot encode"):
            if ways:
                ids = ways[0].change((backend, found), self)
            else:
                ids = backend.encode(found.text, add_special_tokens=found.specials).ids
        return changed(ids, by_step.get("ids", ()), self)

    def _text(self, by_step: dict[str, list[Edit]]) -> Rendered | None:
        """Return the text to encode."""
        start = Rendered(self.text or "", specials=True) if self.chat is None else self.chat
        found = changed(start, by_step.get("chat", ()), self)
        if isinstance(found, Chat):
            found = Rendered(self.render(found), specials=False)
        return changed(found, by_step.get("text", ()), self)

    def _render(self, key: str) -> str:
        messages, variables, source = json.loads(key)
        settings = replace(self.settings, templates={"default": ChatTemplate(source, self.path)})
        return Tokenizer(self.tokenizer.path, self.backend, settings).render_chat(
            messages, **variables
        )

    def _build(self, edits: tuple[Edit, ...]) -> Any:
        """Return a tokenizer with changes in its file, or of its own."""
        if not edits:
            return self.backend
        import tokenizers

        files = [edit for edit in edits if edit.step == "file"]
        content = changed(self.content, files, self)
        if content is None:
            return None
        with refusing_panics(self.tokenizer.path, "not a valid tokenizer"):
            backend = tokenizers.Tokenizer.from_str(json.dumps(content))
        return changed(backend, [edit for edit in edits if edit.step != "file"], self)


def template_of(
    tokenizer: Tokenizer, messages: list[Message], variables: dict[str, Any]
) -> ChatTemplate:
    """Return the template of a chat: with tools the one for these, where there is one.

    Raises: InputError if there is none.
    """
    templates = tokenizer.parts[1].templates
    name = "tool_use" if variables.get("tools") and "tool_use" in templates else "default"
    if name not in templates:
        tokenizer.render_chat(messages, **variables)  # raises, and says which file has none
    return templates[name]


def changed(thing: Any, edits: Sequence[Edit], prompt: Prompt) -> Any:
    """Return what is left of a thing after all edits of its step, None if one does not apply."""
    for edit in edits:
        if thing is None:
            return None
        thing = edit.change(thing, prompt)
    return thing


def prompt_of(
    tokenizer: Tokenizer, text: str | None, messages: list[Message] | None, variables: dict
) -> Prompt:
    """Return a prompt and make sure that it has ids. Raises: InputError if not."""
    prompt = Prompt(tokenizer, text=text, messages=messages, variables=variables)
    if not prompt.ids():
        raise InputError(tokenizer.path, "the prompt has no tokens, but should have one")
    return prompt
