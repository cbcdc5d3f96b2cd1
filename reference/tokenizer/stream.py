"""Text from tokens as they come, without ever showing half a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.reference.checkpoint.errors import InputError

INCOMPLETE = "\ufffd"


class TextStream:
    """Turns one id after another into pieces of text; the pieces joined are what `decode` gives.

    A character of several bytes may be spread over several tokens. Its text comes with the last.
    One case differs from `decode`: byte-fallback tokens that are not UTF-8 make `decode` take back
    the bytes just before them, and what has been shown cannot be taken back.
    """

    def __init__(
        self, step: Callable[[int], str | None], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._step: Callable[[int], str | None] | None = step
        self._decode = decode
        self._ids: list[int] = []
        self._shown = 0

    def push(self, token: int) -> str:
        """Take the next id and return the text that is complete now, often "" or one word."""
        self._ids.append(token)
        if self._step is not None:
            try:
                return self._show(self._step(token) or "")
            except InputError:
                # The text before this token has changed in hindsight: from here on, start over
                # with every token, which is slow and cannot fail.
                self._step = None
        text = self._decode(self._ids)
        return "" if text.endswith(INCOMPLETE) else self._show(text[self._shown :])

    def finish(self) -> str:
        """Return what is left, with U+FFFD where the last character was never completed."""
        return self._show(self._decode(self._ids)[self._shown :])

    def _show(self, piece: str) -> str:
        self._shown += len(piece)
        return piece
