"""Strings that end a text: found across the borders of tokens, and nothing of them ever shown."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.reference.checkpoint.errors import InputError


class StopStrings:
    """Takes pieces of text and gives back what may be shown.

    A text ends at the first character that completes one of the strings; of several that end there
    the longest counts. It is cut before that string. What could still become the beginning of one
    is held back, so that how a text is cut into pieces changes nothing.
    Raises: InputError for an empty string.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if "" in strings:
            raise InputError("stop", "an empty string, but should have a character")
        self.strings = tuple(strings)
        self.found: str | None = None
        self._held = ""

    def push(self, piece: str) -> str:
        """Take the next piece and return what may be shown: nothing once a string was found."""
        if self.found is not None:
            return ""
        text = self._held + piece
        end, self.found = self._first(text)
        shown = end if self.found is not None else len(text) - self._waiting(text)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """Return what was held back, if it became no stop string."""
        held, self._held = self._held, ""
        return "" if self.found is not None else held

    def _first(self, text: str) -> tuple[int, str | None]:
        """Return where the text is to be cut, and the string that is completed first, or None."""
        ends = [(text.find(one) + len(one), -len(one), one) for one in self.strings if one in text]
        if not ends:
            return len(text), None
        end, _, found = min(ends)
        return end - len(found), found

    def _waiting(self, text: str) -> int:
        """Return the length of the longest end of the text that one of the strings begins with."""
        longest = max(map(len, self.strings), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        ends = (n for n in lengths if any(one.startswith(text[-n:]) for one in self.strings))
        return next(ends, 0)
