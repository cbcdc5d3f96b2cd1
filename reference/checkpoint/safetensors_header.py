"""The header of a safetensors file: from untrusted JSON to spans that are known to be sound.

Accepted is only what leaves no byte of the file unexplained: the spans of all tensors, in order,
start at 0, follow one another without a hole or an overlap, and end where the file ends. All
arithmetic is on Python's exact integers.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.dtypes import DTYPES, item_size
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.strict_json import JsonLimits, Pairs, parse_json

# The format allows 100 MB. JSON grows up to 24 times when Python holds it, so the default is less.
HEADER_LIMIT = 16 << 20
ENTRY_LIMIT = 1_000_000
DEPTH_LIMIT = 8
RANK_LIMIT = 64
NAME_LIMIT = 1024
SIZE_LIMIT = 1 << 63
FIELDS = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True)
class Entry:
    """One tensor: its dtype tag, its shape, and its span in bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    entries: dict[str, Entry]
    metadata: dict[str, str]
    warnings: list[str]


def parse_header(data: bytes, path: Path, start: int, file_size: int, limit: int) -> Header:
    """Return the sound contents of a header, or raise InputError naming the first fault.

    `start` is the byte of the file where tensor data begins, `file_size` where it must end.
    """
    if not data.rstrip(b" ").endswith(b"}"):
        _check_padding(data, path)
    limits = JsonLimits(size=limit, entries=ENTRY_LIMIT, depth=DEPTH_LIMIT)
    raw = parse_json(data, path, subject="header", limits=limits, on_duplicate=_duplicate)
    metadata = _metadata(raw.pop("__metadata__", {}), path)
    entries = {name: _entry(name, fields, start, path) for name, fields in raw.items()}
    _check_chain(entries, path, start, file_size)
    return Header(entries, metadata, _lookalikes(entries))


def _check_padding(data: bytes, path: Path) -> None:
    text = data.rstrip(b" \t\r\n\0")
    if text.endswith(b"}"):
        padding = data[len(text) :].lstrip(b" ")
        what = f"bad header padding: byte 0x{padding[0]:02x}, only spaces may follow the header"
        raise InputError(path, what, f"byte {len(data) - len(padding)} of the header")


def _duplicate(key: str, pairs: Pairs) -> str:
    if key in FIELDS:
        return f"duplicate field {show(key)} of a tensor"
    if all(isinstance(value, str) for _, value in pairs):
        return f"duplicate key {show(key)} in __metadata__"
    return f"duplicate tensor name {show(key)}"


def _metadata(raw: Any, path: Path) -> dict[str, str]:
    if raw is None:  # so MLX writes that there is none, and the safetensors package reads it
        return {}
    if not isinstance(raw, dict):
        raise InputError(path, "__metadata__ must map string to string", f"got {show(raw, 40)}")
    for key, value in raw.items():
        if not isinstance(value, str) or not _is_text(key) or not _is_text(value):
            where = f"key {show(key, 40)}"
            raise InputError(path, "__metadata__ must map string to string", where)
    return raw


def _entry(name: str, fields: Any, start: int, path: Path) -> Entry:
    _check_name(name, path)
    where = f"tensor {show(name)}"
    if not isinstance(fields, dict) or fields.keys() != FIELDS:
        raise InputError(path, _field_problem(fields), where)
    dtype, shape = _dtype(fields["dtype"], path, where), _shape(fields["shape"], path, where)
    begin, end = _offsets(fields["data_offsets"], path, where)
    _check_size(dtype, shape, end - begin, path, where)
    return Entry(dtype, shape, start + begin, start + end)


def _check_name(name: str, path: Path) -> None:
    if not name:
        raise InputError(path, "tensor name is empty")
    if len(name) > NAME_LIMIT:
        raise InputError(path, f"tensor name is longer than {NAME_LIMIT} characters", show(name))
    if not _is_text(name):
        raise InputError(path, f"tensor name {show(name)} is not valid text")


def _is_text(text: str) -> bool:
    """Tell whether a string can be written as UTF-8: JSON can smuggle in lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _field_problem(fields: Any) -> str:
    if not isinstance(fields, dict):
        return f"tensor entry must be an object, not {show(fields, 40)}"
    missing = sorted(FIELDS - fields.keys())
    if missing:
        return f"tensor entry has no field {show(missing[0])}"
    return f"tensor entry has an unknown field {show(min(fields.keys() - FIELDS))}"


def _dtype(raw: Any, path: Path, where: str) -> str:
    if not isinstance(raw, str) or raw not in DTYPES:
        raise InputError(path, f"unsupported dtype {show(raw, 40)}", where)
    return raw


def _shape(raw: Any, path: Path, where: str) -> tuple[int, ...]:
    if not isinstance(raw, list) or not all(type(n) is int and n >= 0 for n in raw):
        raise InputError(path, f"bad shape {show(raw, 60)}: it must list sizes from 0", where)
    if len(raw) > RANK_LIMIT:
        raise InputError(path, f"shape of rank {len(raw)} is over the limit of {RANK_LIMIT}", where)
    return tuple(raw)


def _offsets(raw: Any, path: Path, where: str) -> tuple[int, int]:
    if isinstance(raw, list) and len(raw) == 2 and all(type(n) is int for n in raw):
        begin, end = raw
        if 0 <= begin <= end:
            return begin, end
    what = f"bad data_offsets {show(raw, 60)}: it must be [begin, end] with 0 <= begin <= end"
    raise InputError(path, what, where)


def _check_size(dtype: str, shape: tuple[int, ...], span: int, path: Path, where: str) -> None:
    need = math.prod(shape) * item_size(dtype)
    if need != span:
        what = f"size mismatch: {dtype} {show(shape, 60)} needs {_count(need)} bytes, data_offsets "
        raise InputError(path, what + f"give {span}", where)
    # NumPy multiplies the sizes that are not zero, even for a tensor without elements.
    if math.prod(n for n in shape if n) * item_size(dtype) >= SIZE_LIMIT:
        raise InputError(path, f"bad shape {show(shape, 60)}: over 2**63 bytes", where)


def _count(number: int) -> str:
    return str(number) if number < 1 << 128 else "over 2**128"


def _check_chain(entries: dict[str, Entry], path: Path, start: int, file_size: int) -> None:
    """Check that the spans cover the rest of the file exactly once."""
    reached, before = start, ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start < reached:
            raise InputError(path, f"tensors overlap: {show(before)}, {show(name)}")
        if entry.start > reached:
            what = (
                f"bytes {reached - start} to {entry.start - start} of the data belong to no tensor"
            )
            raise InputError(path, what, f"before tensor {show(name)}")
        reached, before = entry.stop, name
    if reached > file_size:
        last = f"tensor {show(before)} ends past the end of the file"
        raise InputError(path, f"file truncated: needs {reached} bytes, has {file_size}", last)
    if reached < file_size:
        what = f"{file_size - reached} bytes after the last tensor belong to no tensor"
        raise InputError(path, what, f"from byte {reached}")


def _lookalikes(entries: dict[str, Entry]) -> list[str]:
    odd = [name for name in entries if not name.isascii()]
    if not odd or len({unicodedata.normalize("NFC", name) for name in entries}) == len(entries):
        return []
    return [f"two tensor names differ in Unicode form only (one of them is {show(odd[0])})"]
