"""JSON without its traps: bounded in size, depth and number of entries, and without guessing.

Python's own parser accepts UTF-16, a byte-order mark, duplicate keys, NaN and numbers of any
length, and answers deep nesting with a RecursionError. All of these are refused here, with the
byte where that is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import read_whole

# Every legal integer of a checkpoint fits 64 bits, which is 20 digits, and a sign.
INT_CHARS = 21
ZEROS = bytes.maketrans(b"123456789", b"000000000")
FLOAT_CHARS = 64
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # 1 and -1 as int8

Pairs = list[tuple[str, Any]]


@dataclass(frozen=True)
class JsonLimits:
    """What a JSON text may cost: bytes, values inside lists and objects, levels of nesting."""

    size: int
    entries: int
    depth: int


def duplicate_key(key: str, _pairs: Pairs) -> str:
    """Return the message for a key that an object holds twice."""
    return f"duplicate key {show(key)}"


def read_json_object(path: Path, *, subject: str, limits: JsonLimits) -> dict[str, Any]:
    """Read a file that must hold one JSON object. Raises InputError for anything else."""
    value = parse_json(read_whole(path, limit=limits.size), path, subject=subject, limits=limits)
    if not isinstance(value, dict):
        raise InputError(path, f"{subject} must be a JSON object, not {show(value, 40)}")
    return value


def parse_json(
    data: bytes,
    path: Path,
    *,
    subject: str,
    limits: JsonLimits,
    on_duplicate: Callable[[str, Pairs], str] = duplicate_key,
) -> Any:
    """Return the value of a JSON text, or raise InputError saying what is wrong with `subject`."""
    if len(data) > limits.size:
        raise InputError(path, f"{subject} of {len(data)} bytes is over the limit of {limits.size}")
    text = _decode(data, path, subject)
    bare = _outside_strings(data)
    _check_complexity(bare, path, subject, limits)
    try:
        return json.loads(
            text,
            object_pairs_hook=partial(_object, path, on_duplicate),
            parse_int=partial(_integer, path) if _has_odd_integers(bare) else None,
            parse_float=partial(_float, path),
            parse_constant=partial(_constant, path),
        )
    except json.JSONDecodeError as error:
        place = len(text[: error.pos].encode())
        raise InputError(path, f"{subject} is not valid JSON at byte {place}", error.msg) from None


def _decode(data: bytes, path: Path, subject: str) -> str:
    if data.startswith(b"\xef\xbb\xbf"):
        raise InputError(path, f"{subject} is not plain UTF-8: it starts with a byte-order mark")
    try:
        return data.decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        raise InputError(path, f"{subject} is not UTF-8", f"byte {error.start}") from None


def _outside_strings(data: bytes) -> bytes:
    """Return the text with zeros for what its strings hold. Closing quotes stay.

    All of it at a time: a tokenizer has ten million bytes. A backslash outside is no JSON, and the
    parser goes no further than that.
    """
    plain = data.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    codes = np.frombuffer(plain, np.uint8)
    return (codes * ~_odd_so_far(codes == ord('"'))).tobytes()


def _odd_so_far(marks: np.ndarray) -> np.ndarray:
    """Return whether an odd number of marks stands up to each place, its own counted.

    As `np.logical_xor.accumulate` does, 64 places at a time, which takes a tenth as long.
    """
    packed = np.packbits(marks, bitorder="little")
    words = np.concatenate([packed, np.zeros(-len(packed) % 8, np.uint8)]).view("<u8")
    for places in (1, 2, 4, 8, 16, 32):
        words = words ^ (words << places)
    whole = np.logical_xor.accumulate(words >> 63 != 0)
    words[1:] ^= np.where(whole[:-1], ~np.uint64(0), np.uint64(0))
    return np.unpackbits(words.view(np.uint8), count=len(marks), bitorder="little").view(bool)


def _check_complexity(bare: bytes, path: Path, subject: str, limits: JsonLimits) -> None:
    """Refuse what would be costly to build, before any of it is built. Strings are cut out."""
    steps = np.frombuffer(bare.translate(STEPS, NOT_BRACKETS), np.int8)
    opened, closed = (np.count_nonzero(steps == step) for step in (1, -1))
    commas = np.count_nonzero(np.frombuffer(bare, np.uint8) == ord(","))
    entries = commas + max(opened, closed)  # as many of each, where this is JSON
    if entries > limits.entries:
        what = f"{subject} is too complex: {entries} entries, the limit is {limits.entries}"
        raise InputError(path, what)
    if steps.cumsum(dtype=np.int64).max(initial=0) > limits.depth:
        raise InputError(path, f"{subject} is nested deeper than {limits.depth} levels")


def _object(path: Path, on_duplicate: Callable[[str, Pairs], str], pairs: Pairs) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InputError(path, on_duplicate(key, pairs))
            seen.add(key)
    return result


def _has_odd_integers(bare: bytes) -> bool:
    """Whether there is one that `_integer` may refuse, or a float like it; else int alone does."""
    minus = b"-" in bare and b"-0" in bare  # two bytes take fifty times as long to look for
    return minus or b"0" * 20 in bare.translate(ZEROS)


def _integer(path: Path, digits: str) -> int:
    if len(digits) > INT_CHARS:
        raise InputError(path, f"integer of {len(digits)} digits is out of range", show(digits, 40))
    if digits == "-0":
        raise InputError(path, "-0 is not an integer")
    return int(digits)


def _float(path: Path, digits: str) -> float:
    value = float(digits) if len(digits) <= FLOAT_CHARS else math.inf
    if not math.isfinite(value):
        raise InputError(path, f"number {show(digits, 40)} is out of range")
    return value


def _constant(path: Path, name: str) -> float:
    raise InputError(path, f"{name} is not a JSON number")
