"""Numbers as bytes, and a file from its parts, right or wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# The code that `struct` has for each dtype; BF16 is the upper half of an F32.
CODES = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b",
         "U16": "H", "U8": "B", "BOOL": "?", "U32": "I", "U64": "Q"}  # fmt: skip

SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}


@dataclass(frozen=True)
class Tensor:
    """What a file holds: `values` are JSON, so the three numbers that JSON has not are strings."""

    name: str
    dtype: str
    shape: list[int]
    values: list[Any]
    data: bytes


def tensor(name: str, dtype: str, shape: Sequence[int], values: Sequence[Any]) -> Tensor:
    """Return a tensor whose values are exactly those: a value that would be rounded is refused."""
    data = b"".join(packed(dtype, SPECIAL.get(one, one)) for one in values)
    return Tensor(name, dtype, list(shape), list(values), data)


def packed(dtype: str, value: Any) -> bytes:
    if dtype == "BF16":
        whole = struct.pack("<f", value)
        if value == value and (whole[:2] != b"\0\0" or struct.unpack("<f", whole)[0] != value):
            raise ValueError(f"{value} is no BF16")
        return whole[2:]
    data = struct.pack("<" + CODES[dtype], value)
    if struct.unpack("<" + CODES[dtype], data)[0] != value and value == value:
        raise ValueError(f"{value} is no {dtype}")
    return data


def entry(one: Tensor, begin: int) -> dict[str, Any]:
    offsets = [begin, begin + len(one.data)]
    return {"dtype": one.dtype, "shape": one.shape, "data_offsets": offsets}


def file(header: str | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Return a file with a header as it is given, and its length or another."""
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def plain(tensors: Sequence[Tensor], about: Any = None) -> bytes:
    """Return a file of tensors in their order, with no padding: numbers begin anywhere."""
    header: dict[str, Any] = {} if about is None else {"__metadata__": about}
    begin = 0
    for one in tensors:
        header[one.name] = entry(one, begin)
        begin += len(one.data)
    return file(json.dumps(header, separators=(",", ":")), b"".join(one.data for one in tensors))
