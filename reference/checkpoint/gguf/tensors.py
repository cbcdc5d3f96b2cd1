"""The tensor list of a GGUF header: from untrusted numbers to spans that are known to be sound.

Each tensor must begin where the one before it ended, padded to the alignment, and the file must end
with the last. Checking only that a span lies in the file is not enough: files were published in
which a tensor was shorter than its shape, and readers took the rest from its neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.gguf.cursor import Cursor
from lockstep.reference.checkpoint.gguf.dimensions import shape_listed_as
from lockstep.reference.checkpoint.gguf.types import OTHERS, TYPES, block_of
from lockstep.reference.checkpoint.safetensors_header import Entry

SMALLEST_INFO = 33  # length of the name, one character, rank, one size, type, offset
TENSOR_LIMIT = 65_536
NAME_BYTES = 63
RANK_LIMIT = 4
SIZE_LIMIT = 1 << 63


@dataclass(frozen=True)
class Info:
    """One tensor as the header lists it; `offset` counts from the start of the data."""

    type: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int


def read_infos(cursor: Cursor, count: int, *, fewest: int) -> dict[str, Info]:
    """Return the tensors by name, in the order of the file."""
    most = min(cursor.remaining // SMALLEST_INFO, TENSOR_LIMIT)
    if not fewest <= count <= most:
        what = f"impossible count of tensors: {count}, {fewest} to {most} are possible"
        raise InputError(cursor.path, what)
    infos: dict[str, Info] = {}
    for _ in range(count):
        name = _name(cursor)
        if name in infos:
            raise InputError(cursor.path, f"duplicate tensor name {show(name)}")
        infos[name] = _info(cursor, name)
    return infos


def place(
    infos: dict[str, Info], start: int, size: int, alignment: int, path: Path
) -> dict[str, Entry]:
    """Return each tensor's span in the file of `size` bytes, whose data begin at `start`."""
    entries: dict[str, Entry] = {}
    reached, before, stop = 0, "", min(start, size)
    for name, info in infos.items():
        if info.offset != reached:
            what = f"bad offset {info.offset} of tensor {show(name)}: it must be {reached}"
            raise InputError(path, what, f"where {show(before)} ends" if before else "the first")
        begin = start + info.offset
        stop = begin + info.nbytes
        entries[name] = Entry(info.type, info.shape, begin, stop)
        reached, before = padded(info.offset + info.nbytes, alignment), name
    if stop > size:
        last = next(name for name, entry in entries.items() if entry.stop > size)
        where = f"tensor {show(last)} ends past the end of the file"
        raise InputError(path, f"file truncated: needs {stop} bytes, has {size}", where)
    if size > start + reached:
        what = f"{size - start - reached} bytes after the last tensor belong to no tensor"
        raise InputError(path, what, f"from byte {start + reached}")
    return entries


def padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _name(cursor: Cursor) -> str:
    where = f"byte {cursor.place}"
    name = cursor.text("a tensor name")
    if not name or len(name.encode()) > NAME_BYTES or not name.isprintable():
        what = f"bad tensor name {show(name)}: 1 to {NAME_BYTES} bytes of printable text"
        raise InputError(cursor.path, what, where)
    return name


def _info(cursor: Cursor, name: str) -> Info:
    where = f"tensor {show(name)}"
    rank = cursor.count(f"the rank of {where}", size=4)
    if not 1 <= rank <= RANK_LIMIT:
        raise InputError(cursor.path, f"bad rank {rank}: 1 to {RANK_LIMIT} dimensions", where)
    listed = [cursor.count(f"a size of {where}") for _ in range(rank)]
    kind = cursor.count(f"the type of {where}", size=4)
    if kind not in TYPES:
        named = f" ({OTHERS[kind]})" if kind in OTHERS else ""
        what = f"unsupported tensor type {kind}{named}, {', '.join(TYPES.values())} are read"
        raise InputError(cursor.path, what, where)
    shape = shape_listed_as(listed)
    nbytes = _nbytes(shape, TYPES[kind], cursor.path, where)
    return Info(TYPES[kind], shape, nbytes, cursor.count(f"the offset of {where}"))


def _nbytes(shape: tuple[int, ...], kind: str, path: Path, where: str) -> int:
    """Return how many bytes the blocks of a tensor take; they lie along its last axis."""
    weights, size = block_of(kind)
    if min(shape) < 1 or prod(shape) * size >= SIZE_LIMIT:
        raise InputError(path, f"bad dimensions {show(shape, 90)}", where)
    if shape[-1] % weights:
        what = f"rows of {shape[-1]} weights are no multiple of {weights}, a block of {kind}"
        raise InputError(path, what, where)
    return prod(shape) // weights * size
