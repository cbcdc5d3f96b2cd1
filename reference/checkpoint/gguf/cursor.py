"""Reading a header forward, in chunks, and never past what the file has."""

from __future__ import annotations

import struct
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import read_bytes

CHUNK = 1 << 20
# Largest published headers are about 30 MB: a vocabulary of 260,000 tokens and its merges.
HEADER_LIMIT = 256 << 20
TEXT_LIMIT = 16 << 20  # of keys, names and single strings, which are kept
STRINGS_LIMIT = 2_000_000  # in arrays, which are not: they cost time
LENGTH = struct.Struct("<Q")


class Cursor:
    """A place in an open file. What is taken is known to be there before it is read."""

    def __init__(self, descriptor: int, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.place = 0
        self._descriptor = descriptor
        self._chunk, self._start = b"", 0
        self._text = self._strings = 0

    @property
    def remaining(self) -> int:
        return self.size - self.place

    def take(self, count: int, what: str) -> bytes:
        """Return the next bytes and go past them. `what` names them for the error."""
        self._demand(count, what)
        begin = self.place - self._start
        if begin + count > len(self._chunk):
            length = min(max(count, CHUNK), self.remaining)
            self._chunk = read_bytes(self._descriptor, self.place, length, self.path)
            self._start, begin = self.place, 0
        self.place += count
        return self._chunk[begin : begin + count]

    def number(self, code: str, what: str) -> int | float:
        """Return one number of a `struct` code."""
        form = struct.Struct(f"<{code}")
        return form.unpack(self.take(form.size, what))[0]

    def count(self, what: str, *, size: int = 8) -> int:
        """Return an unsigned number of 4 or 8 bytes."""
        return int.from_bytes(self.take(size, what), "little")

    def text(self, what: str) -> str:
        """Return one string: its length in 8 bytes, then UTF-8."""
        length = self.count(f"the length of {what}")
        if length > self.remaining:
            raise InputError(self.path, f"bad length {length} of {what}", self._where())
        self._text += length
        if self._text > TEXT_LIMIT:
            raise InputError(self.path, f"header holds over {TEXT_LIMIT} bytes of text", what)
        data = self.take(length, what)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise InputError(self.path, f"{what} is not UTF-8: byte {error.start}") from None
        if "\0" in text:
            raise InputError(self.path, f"{what} holds a NUL: {show(text, 60)}")
        return text

    def skip(self, count: int, what: str) -> None:
        self._demand(count, what)
        self.place += count

    def skip_strings(self, count: int, what: str) -> None:
        """Go past an array of strings, whose lengths are all looked at."""
        self._strings += count
        if count * LENGTH.size > self.remaining:
            raise InputError(
                self.path, f"impossible count: {count} strings in {what}", self._where()
            )
        if self._strings > STRINGS_LIMIT:
            raise InputError(self.path, f"arrays of over {STRINGS_LIMIT} strings", what)
        for number in range(count):
            length = LENGTH.unpack(self.take(LENGTH.size, what))[0]
            if length > self.remaining:
                raise InputError(self.path, f"bad length {length} of string {number} of {what}")
            self.place += length

    def _demand(self, count: int, what: str) -> None:
        if count > self.remaining:
            needs = f"file truncated: {what} needs {count} bytes, {self.remaining} are left"
            raise InputError(self.path, needs, self._where())
        if self.place + count > HEADER_LIMIT:
            raise InputError(self.path, f"header is over the limit of {HEADER_LIMIT} bytes", what)

    def _where(self) -> str:
        return f"byte {self.place}"
