"""Text from tokens as they come, without ever showing half a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tokenizers
from tokenizers.decoders import DecodeStream


class TextStream:
    """Turns one id after another into pieces of text; the pieces joined are what `decode` gives.

    A character of several bytes may be spread over several tokens. Its text comes with the last.
    One case differs from `decode`: byte-fallback tokens that are not UTF-8 make `decode` take back
    the bytes just before them, and what has been shown cannot be taken back.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, decode: Callable[[Sequence[int]], str], size: int
    ) -> None:
        self._tokenizer, self._decode, self._size = tokenizer, decode, size
        self._steps = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._shown = 0

    def push(self, token: int) -> str:
        """Take the next id and return the text that is complete now, often "" or one word."""
        self._ids.append(token)
        if not 0 <= token < self._size:
            return self._show(self._decode([token]))
        try:
            piece = self._steps.step(self._tokenizer, token)
        except Exception:
            # The text before this token has changed in hindsight.
            return self._catch_up()
        return self._show(piece or "")

    def finish(self) -> str:
        """Return what is left, with U+FFFD where the last character was never completed."""
        return self._show(self._decode(self._ids)[self._shown :])

    def _catch_up(self) -> str:
        self._steps = DecodeStream(skip_special_tokens=True)
        return self.finish()

    def _show(self, piece: str) -> str:
        self._shown += len(piece)
        return piece
