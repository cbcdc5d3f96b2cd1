"""Text to token ids and back, as a model's own tokenizer files say.

Reading order: `tokenizer_file.py` (tokenizer.json, checked), `settings.py` (special tokens and
templates), `chat_template.py` (rendering), `stream.py` (text as it comes).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.decoders import DecodeStream

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.resolve import is_gguf
from lockstep.reference.tokenizer.settings import ChatTemplate, Settings, read_settings
from lockstep.reference.tokenizer.stream import TextStream
from lockstep.reference.tokenizer.tokenizer_file import MAX_ID, read_tokenizer, refusing_panics

TOKENIZER_FILE = "tokenizer.json"
# Far more than any context; encoding takes some hundred bytes of memory a byte.
TEXT_BYTES = 16 << 20

Message = dict[str, Any]


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a model folder, or of a GGUF file.

    Reads tokenizer.json and, where they exist, tokenizer_config.json and chat_template.jinja; of a
    GGUF file its metadata. Raises InputError, naming the file, if tokenizer.json is missing or any
    of them is not valid.
    """
    if is_gguf(path):
        from lockstep.reference.tokenizer.gguf_tokenizer import read_gguf_tokenizer

        return Tokenizer(path, *read_gguf_tokenizer(path))
    file = path / TOKENIZER_FILE
    return Tokenizer(file, read_tokenizer(file), read_settings(path))


class Tokenizer:
    """The tokenizer of one model: plain text, chats, and text as it is generated."""

    def __init__(self, path: Path, backend: tokenizers.Tokenizer, settings: Settings) -> None:
        self.path = path
        self._backend = backend
        self._settings = settings
        self.eos_token_ids = self._find_eos()

    @cached_property
    def size(self) -> int:
        """One more than the highest id. A model may have more embedding rows than that."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def parts(self) -> tuple[tokenizers.Tokenizer, Settings]:
        """The package's tokenizer and what stands beside it, to make others that differ."""
        return self._backend, self._settings

    def encode(self, text: str) -> list[int]:
        """Return the ids of a plain prompt, with BOS or EOS where the tokenizer adds them.

        Special tokens that are spelt out in the text become their ids. Raises InputError for text
        that is not valid Unicode or is over 16 MiB.
        """
        return self._encode(text, add_special_tokens=True)

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a piece of text by itself: nothing is put before or behind it."""
        return self._encode(text, add_special_tokens=False)

    def encode_chat(self, messages: list[Message], **variables: Any) -> list[int]:
        """Return the ids of a chat. Nothing is added to what the template writes: no second BOS."""
        return self._encode(self.render_chat(messages, **variables), add_special_tokens=False)

    def render_chat(
        self, messages: list[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Return the text that the model's chat template makes of these messages.

        `variables` reach the template by name (`tools`, `documents`, `enable_thinking`); the
        special tokens do too. Keys of a message whose value is None are left out, as transformers
        does. Raises InputError without a template and for every way in which one can fail.
        """
        from lockstep.reference.tokenizer.chat_template import render_template

        template = self._template(with_tools=bool(variables.get("tools")))
        for message in messages:
            if not isinstance(message, dict):
                raise InputError(self.path, f"chat message must be an object, not {show(message)}")
        if not messages:
            raise InputError(self.path, "a chat needs at least one message")
        given = {"tools": None, "documents": None, **self._settings.special_tokens, **variables}
        given["messages"] = [
            {key: value for key, value in message.items() if value is not None}
            for message in messages
        ]
        given["add_generation_prompt"] = add_generation_prompt
        return render_template(template.source, given, path=template.path)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ids, with special tokens only if `special`. Ids that are no token's
        have no text.

        Raises InputError for a negative id.
        """
        known = [number for number in map(self._checked, ids) if self._is_token(number)]
        with refusing_panics(self.path, "cannot decode"):
            return self._backend.decode(known, skip_special_tokens=not special)

    def stream(self) -> TextStream:
        """Return a decoder that takes ids one by one."""
        steps = DecodeStream(skip_special_tokens=True)

        def step(number: int) -> str | None:
            if not self._is_token(self._checked(number)):
                return None
            with refusing_panics(self.path, "cannot decode"):
                return steps.step(self._backend, number)

        return TextStream(step, self.decode)

    def token(self, number: int) -> str:
        """Return how the tokenizer's vocabulary spells an id ('Ġhello'), "" if it has no token."""
        return (self._backend.id_to_token(number) or "") if self._is_token(number) else ""

    def _is_token(self, number: int) -> bool:
        # Not by `size`: that takes the whole vocabulary out of the package.
        return 0 <= number <= MAX_ID and self._backend.id_to_token(number) is not None

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            length = len(text.encode())
        except UnicodeEncodeError as error:
            where = f"character {error.start}"
            raise InputError(
                self.path, "text is not valid Unicode: lone surrogate", where
            ) from None
        if length > TEXT_BYTES:
            raise InputError(self.path, f"text of {length} bytes is over the limit of {TEXT_BYTES}")
        with refusing_panics(self.path, "cannot encode"):
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def _checked(self, number: int) -> int:
        if number < 0:
            raise InputError(self.path, f"token id {number} is negative")
        return int(number)

    def _find_eos(self) -> frozenset[int]:
        text = self._settings.special_tokens.get("eos_token")
        if text is None:
            return frozenset()
        number = self._backend.token_to_id(text)
        if number is None:
            what = f"eos_token {show(text)} is not a token of {self.path.name}"
            raise InputError(self._settings.path, what)
        return frozenset({number})

    def _template(self, *, with_tools: bool) -> ChatTemplate:
        templates = self._settings.templates
        if with_tools and "tool_use" in templates:
            return templates["tool_use"]
        if "default" in templates:
            return templates["default"]
        what = "this model has no chat template: give it a plain prompt"
        raise InputError(self._settings.path, what)
