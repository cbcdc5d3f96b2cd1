"""One validated GGUF file: named values, named tensors.

Layout: "GGUF", version, number of tensors, number of metadata pairs, the pairs, the list of
tensors, padding, and the data. The header is read and checked in full when the file is opened, and
no data and no long array before somebody asks for them.

Source: ggml/docs/gguf.md of the ggml project; gguf.cpp of llama.cpp where that is stricter.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.dtypes import numpy_dtype
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.file_kinds import HEAD_BYTES, looks_like
from lockstep.reference.checkpoint.files import (
    check_unchanged,
    open_file,
    read_bytes,
    read_into,
    stamp,
)
from lockstep.reference.checkpoint.gguf.cursor import LENGTH, Cursor
from lockstep.reference.checkpoint.gguf.metadata import Array, Metadata, read_metadata
from lockstep.reference.checkpoint.gguf.tensors import padded, place, read_infos
from lockstep.reference.checkpoint.gguf.types import block_of
from lockstep.reference.checkpoint.safetensors_header import Entry
from lockstep.reference.checkpoint.spans import Spans, read_part

MAGIC = b"GGUF"
FIXED_BYTES = 24  # magic, version, two counts
VERSIONS = (2, 3)  # they differ in nothing that a little-endian file shows
COUNT = "split.count"  # of files; see parts.py
ALIGNMENT, DEFAULT_ALIGNMENT, ALIGNMENT_LIMIT = "general.alignment", 32, 1 << 16


class GgufFile:
    """One file. `metadata` holds single values and where arrays lie, `entries` the tensors.

    Raises InputError for whatever is not sound.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with open_file(self.path) as descriptor:
            self._stamp = stamp(descriptor)
            cursor = Cursor(descriptor, self.path, self._stamp.size)
            tensors, pairs = _read_start(cursor)
            self.metadata: Metadata = read_metadata(cursor, pairs)
            infos = read_infos(cursor, tensors, fewest=0 if _is_part(self.metadata) else 1)
            check_unchanged(descriptor, self.path, self._stamp)
        alignment = _alignment(self.metadata, self.path)
        start = padded(cursor.place, alignment)
        self.entries = place(infos, start, self._stamp.size, alignment, self.path)
        last = max((entry.stop for entry in self.entries.values()), default=start)
        short = (last - start) % alignment and last == self._stamp.size
        self.warnings = ["the padding after the last tensor is missing"] if short else []

    def array(self, key: str) -> list:
        """Return an array of the metadata. Raises InputError if the key holds none."""
        found = self.metadata.get(key)
        if not isinstance(found, Array):
            raise InputError(
                self.path, f"metadata {show(key)} must be an array", f"found {show(found)}"
            )
        with open_file(self.path) as descriptor:
            check_unchanged(descriptor, self.path, self._stamp)
            data = read_bytes(descriptor, found.start, found.stop - found.start, self.path)
        if found.kind == "":
            return _strings(data, found.count, key, self.path)
        if found.kind == "?" and data.strip(b"\0\1"):
            raise InputError(self.path, f"metadata {show(key)} holds a bool that is not 0 or 1")
        return np.frombuffer(data, np.dtype(found.kind).newbyteorder("<")).tolist()

    def read(self, name: str, room: np.ndarray | None = None) -> np.ndarray | BlockTensor:
        """Return one tensor: dense, or its blocks as they are stored.

        It is written into `room`, as many bytes as it has, if it is given.
        """
        entry = self._entry(name)
        rows = entry.shape[0] if len(entry.shape) > 1 else None
        return self._read(entry, rows, entry.start, room)

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray | BlockTensor:
        """Return `tensor[start:stop]` along the first of several axes, reading no other bytes."""
        entry = self._entry(name)
        if len(entry.shape) == 1 or not 0 <= start <= stop <= entry.shape[0]:
            raise IndexError(f"rows {start}:{stop} of {show(name)}, which is {entry.shape}")
        row = (entry.stop - entry.start) // entry.shape[0]
        return self._read(entry, stop - start, entry.start + start * row)

    def read_part(
        self, name: str, rows: Spans | None, columns: Spans | None, width: int
    ) -> np.ndarray | BlockTensor:
        """Return some rows, and of these some columns, reading those bytes alone: see spans.py."""
        entry = self._entry(name)
        found = read_part(self.path, self._stamp, entry, rows, columns, width)
        if entry.dtype in BLOCKS:
            return BlockTensor(found, entry.dtype)
        made = found.view(numpy_dtype(entry.dtype))
        return made.reshape(-1) if len(entry.shape) == 1 else made

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise KeyError(f"no tensor {show(name)} in {self.path}")
        return self.entries[name]

    def _read(
        self, entry: Entry, rows: int | None, start: int, room: np.ndarray | None = None
    ) -> np.ndarray | BlockTensor:
        lead = entry.shape[:-1] if rows is None else (rows, *entry.shape[1:-1])
        weights, size = block_of(entry.dtype)
        row = entry.shape[-1] // weights * size
        buffer = np.empty((*lead, row), np.uint8) if room is None else room.reshape(*lead, row)
        with open_file(self.path) as descriptor:
            check_unchanged(descriptor, self.path, self._stamp)
            read_into(descriptor, buffer.reshape(-1).data, start, self.path)
            check_unchanged(descriptor, self.path, self._stamp)
        if entry.dtype in BLOCKS:
            return BlockTensor(buffer, entry.dtype)
        return buffer.view(numpy_dtype(entry.dtype))


def _read_start(cursor: Cursor) -> tuple[int, int]:
    """Return the number of tensors and of metadata pairs."""
    if cursor.size == 0:
        raise InputError(cursor.path, "file is empty")
    head = cursor.take(min(cursor.size, FIXED_BYTES), "the start")
    if head[:4] != MAGIC or len(head) < FIXED_BYTES:
        kind = looks_like(head[:HEAD_BYTES], shortest=1) if head[:4] != MAGIC else None
        hint = f", it looks like {kind}" if kind else ""
        short = f": {cursor.size} bytes, a header has {FIXED_BYTES} at least"
        what = short if len(head) < FIXED_BYTES else f": it begins with {show(list(head[:4]))}"
        raise InputError(cursor.path, f"not a GGUF file{hint or what}")
    version = int.from_bytes(head[4:8], "little")
    if version not in VERSIONS:
        swapped = int.from_bytes(head[4:8], "big") in VERSIONS
        hint = ": its byte order is swapped (big-endian)" if swapped else ", 2 and 3 are read"
        raise InputError(cursor.path, f"unsupported GGUF version {version}{hint}")
    return LENGTH.unpack(head[8:16])[0], LENGTH.unpack(head[16:24])[0]


def _is_part(metadata: Metadata) -> bool:
    """Tell whether the model has other files: one of several may hold metadata alone."""
    count = metadata.get(COUNT)
    return type(count) is int and count > 1


def _alignment(metadata: Metadata, path: Path) -> int:
    value = metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
    if type(value) is int and 8 <= value <= ALIGNMENT_LIMIT and value & (value - 1) == 0:
        return value
    what = f"bad {ALIGNMENT}: a power of two from 8 to {ALIGNMENT_LIMIT}"
    raise InputError(path, what, f"found {show(value)}")


def _strings(data: bytes, count: int, key: str, path: Path) -> list[str]:
    """Return the strings of a checked array."""
    found, place = [], 0
    for number in range(count):
        start = place + LENGTH.size
        place = start + LENGTH.unpack_from(data, place)[0]
        try:
            found.append(data[start:place].decode())
        except UnicodeDecodeError:
            raise InputError(path, f"string {number} of {show(key)} is not UTF-8") from None
    return found
