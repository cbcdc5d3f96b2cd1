"""The key/value pairs of a GGUF header."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.gguf.cursor import Cursor

# Value type: its name, and its code for `struct`.
NUMBERS = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
BOOL, STRING, ARRAY = 7, 8, 9
SIZES = {"B": 1, "b": 1, "H": 2, "h": 2, "I": 4, "i": 4, "f": 4, "Q": 8, "q": 8, "d": 8, "?": 1}
SMALLEST_PAIR = 14  # length of the key, one character, type, one byte
PAIR_LIMIT = 65_536
KEY_BYTES = 65_535
KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class Array:
    """An array that was checked and left in the file: `kind` is a `struct` code, or "" for text."""

    kind: str
    count: int
    start: int
    stop: int


Value = int | float | bool | str | Array
Metadata = dict[str, Value]


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Return the pairs by key. Raises InputError for the first that is not sound."""
    if count > min(cursor.remaining // SMALLEST_PAIR, PAIR_LIMIT):
        what = f"impossible count of metadata: {count}, at most "
        most = min(cursor.remaining // SMALLEST_PAIR, PAIR_LIMIT)
        raise InputError(cursor.path, f"{what}{most} are possible")
    metadata: Metadata = {}
    for _ in range(count):
        key = _key(cursor)
        if key in metadata:
            raise InputError(cursor.path, f"duplicate metadata key {show(key)}")
        metadata[key] = _value(cursor, f"metadata {show(key)}")
    return metadata


def _key(cursor: Cursor) -> str:
    where = f"byte {cursor.place}"
    key = cursor.text("a metadata key")
    if not KEY.fullmatch(key) or len(key) > KEY_BYTES:
        what = f"bad metadata key {show(key)}: 1 to {KEY_BYTES} ASCII characters without spaces"
        raise InputError(cursor.path, what, where)
    return key


def _value(cursor: Cursor, what: str) -> Value:
    kind = cursor.count(f"the type of {what}", size=4)
    if kind in NUMBERS:
        return cursor.number(NUMBERS[kind][1], what)
    if kind == BOOL:
        return _bool(cursor, what)
    if kind == STRING:
        return cursor.text(what)
    if kind == ARRAY:
        return _array(cursor, what)
    raise InputError(cursor.path, f"unknown value type {kind} of {what}", f"byte {cursor.place}")


def _bool(cursor: Cursor, what: str) -> bool:
    byte = cursor.count(what, size=1)
    if byte > 1:
        raise InputError(cursor.path, f"{what} is a bool of {byte}, it must be 0 or 1")
    return byte == 1


def _array(cursor: Cursor, what: str) -> Array:
    kind = cursor.count(f"the item type of {what}", size=4)
    count = cursor.count(f"the length of {what}")
    start = cursor.place
    if kind == STRING:
        cursor.skip_strings(count, what)
        return Array("", count, start, cursor.place)
    if kind == ARRAY:
        raise InputError(cursor.path, f"{what} is an array of arrays, which is not read")
    if kind != BOOL and kind not in NUMBERS:
        raise InputError(cursor.path, f"unknown item type {kind} of {what}", f"byte {start}")
    code = "?" if kind == BOOL else NUMBERS[kind][1]
    if count * SIZES[code] > cursor.remaining:
        left = f"{cursor.remaining} bytes are left"
        raise InputError(cursor.path, f"impossible length {count} of {what}, {left}")
    cursor.skip(count * SIZES[code], what)
    return Array(code, count, start, cursor.place)
