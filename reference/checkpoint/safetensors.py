"""Reading safetensors: an 8-byte length, a JSON header, then the bytes of every tensor.

The file is validated completely when it is opened, and nothing but the header is read until a
tensor is asked for. The file is opened anew for each read, which costs microseconds, leaves no
descriptor behind and notices a file that was replaced.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lockstep.reference.checkpoint.dtypes import item_size, numpy_dtype
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.file_kinds import HEAD_BYTES, looks_like
from lockstep.reference.checkpoint.files import (
    FileStamp,
    check_unchanged,
    open_file,
    read_bytes,
    read_into,
    stamp,
)
from lockstep.reference.checkpoint.safetensors_header import (
    HEADER_LIMIT,
    Entry,
    Header,
    parse_header,
)
from lockstep.reference.checkpoint.spans import Spans, read_part

LENGTH_BYTES = 8


class SafetensorsFile:
    """One validated safetensors file.

    `entries` maps each tensor's name to its dtype tag, shape and span in the file, `metadata` the
    free text that the writer left, `warnings` holds what is legal but odd, `header_size` is the
    header's length in bytes. Raises InputError.
    """

    def __init__(self, path: str | Path, *, header_limit: int = HEADER_LIMIT) -> None:
        self.path = Path(path)
        with open_file(self.path) as descriptor:
            self._stamp = stamp(descriptor)
            data = _read_header(descriptor, self.path, self._stamp, header_limit)
            check_unchanged(descriptor, self.path, self._stamp)
        start = LENGTH_BYTES + len(data)
        header: Header = parse_header(data, self.path, start, self._stamp.size, header_limit)
        self.header_size = len(data)
        self.entries: dict[str, Entry] = header.entries
        self.metadata: dict[str, str] = header.metadata
        self.warnings: list[str] = header.warnings

    def read(self, name: str, room: np.ndarray | None = None) -> np.ndarray:
        """Return one tensor as a new array. BF16 and F8 come in the types of ml_dtypes.

        It is written into `room`, bytes that must be enough, if it is given.
        """
        entry = self._entry(name)
        return self._read(name, entry.shape, entry.start, entry.stop, room)

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return `tensor[start:stop]` along the first axis, reading those bytes alone."""
        entry = self._entry(name)
        rows = entry.shape[0] if entry.shape else 0
        if not 0 <= start <= stop <= rows:
            raise IndexError(f"rows {start}:{stop} of {show(name)}, which has {rows}")
        row_bytes = (entry.stop - entry.start) // rows if rows else 0
        shape = (stop - start, *entry.shape[1:])
        first = entry.start + start * row_bytes
        return self._read(name, shape, first, first + (stop - start) * row_bytes)

    def read_numbers(
        self, name: str, start: int, stop: int, room: np.ndarray | None = None
    ) -> np.ndarray:
        """Return numbers `start` to `stop` of a tensor, counted along its last axis first.

        They are written into `room`, bytes that must be enough, if it is given.
        """
        entry = self._entry(name)
        size = item_size(entry.dtype)
        if not 0 <= start <= stop <= (entry.stop - entry.start) // size:
            raise IndexError(f"numbers {start}:{stop} of {show(name)}")
        first = entry.start + start * size
        return self._read(name, (stop - start,), first, first + (stop - start) * size, room)

    def read_part(
        self, name: str, rows: Spans | None, columns: Spans | None, width: int
    ) -> np.ndarray:
        """Return some rows, and of these some columns, reading those bytes alone: see spans.py."""
        entry = self._entry(name)
        found = read_part(self.path, self._stamp, entry, rows, columns, width)
        made = found.view(numpy_dtype(entry.dtype))
        return made.reshape(-1) if len(entry.shape) == 1 else made

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise KeyError(f"no tensor {show(name)} in {self.path}")
        return self.entries[name]

    def _read(
        self,
        name: str,
        shape: tuple[int, ...],
        start: int,
        stop: int,
        room: np.ndarray | None = None,
    ) -> np.ndarray:
        entry = self._entry(name)
        with open_file(self.path) as descriptor:
            check_unchanged(descriptor, self.path, self._stamp)
            # A buffer of its own is aligned wherever the bytes lie in the file.
            buffer = np.empty(stop - start, np.uint8) if room is None else room[: stop - start]
            read_into(descriptor, buffer.data, start, self.path)
            check_unchanged(descriptor, self.path, self._stamp)
        if entry.dtype == "BOOL" and buffer.size and buffer.max() > 1:
            place = int(np.argmax(buffer > 1))
            said = f"number {start - entry.start + place} is {buffer[place]}"
            what = f"a BOOL tensor holds a byte that is neither 0 nor 1: {said}"
            raise InputError(self.path, what, f"tensor {show(name)}")
        return buffer.view(numpy_dtype(entry.dtype)).reshape(shape)


def _read_header(descriptor: int, path: Path, file: FileStamp, limit: int) -> bytes:
    """Return the header's bytes once its length is known to fit the file and the limit."""
    if file.size == 0:
        raise InputError(path, "file is empty")
    head = read_bytes(descriptor, 0, min(file.size, HEAD_BYTES), path)
    if file.size < LENGTH_BYTES:
        raise InputError(path, f"file is shorter than the {LENGTH_BYTES}-byte header length")
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    rest = file.size - LENGTH_BYTES
    if not (0 < length <= min(rest, limit)) or head[LENGTH_BYTES] != ord("{"):
        raise InputError(path, _length_problem(head, length, rest, limit))
    return read_bytes(descriptor, LENGTH_BYTES, length, path)


def _length_problem(head: bytes, length: int, rest: int, limit: int) -> str:
    kind = looks_like(head, shortest=1 if length > rest else 3)
    if kind is not None:
        return f"looks like {kind}, not safetensors"
    if length == 0:
        return "header is empty: its length is 0"
    if length > rest:
        swapped = int.from_bytes(head[:LENGTH_BYTES], "big")
        hint = ": its byte order looks swapped" if 0 < swapped <= rest else ""
        return f"header length {length} exceeds file ({rest + LENGTH_BYTES} bytes){hint}"
    if length > limit:
        return f"header of {length} bytes is over the limit of {limit}"
    return f"header must start with '{{', not byte 0x{head[LENGTH_BYTES]:02x}"
