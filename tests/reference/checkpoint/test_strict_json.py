"""Strict JSON. By witness: what passes is what Python's parser reads. By hand: what does not."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.reference.checkpoint.strict_json import (
    JsonLimits,
    _odd_so_far,
    parse_json,
    read_json_object,
)

PATH = Path("some.json")
LIMITS = JsonLimits(size=4096, entries=64, depth=4)
Refuses = Callable[[Callable[[], object], str], str]


def parse(data: bytes, limits: JsonLimits = LIMITS) -> Any:
    return parse_json(data, PATH, subject="config", limits=limits)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3)
)


@given(value=VALUES, ascii_only=st.booleans())
def test_reads_what_json_reads(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8")
    assert parse(data, JsonLimits(size=10**6, entries=10**4, depth=100)) == value


@given(data=st.binary(max_size=60) | st.text('[]{},:"\\0123456789.eE-+ntfu \n', max_size=40))
def test_any_bytes_are_read_as_json_reads_them_or_refused(data: bytes | str) -> None:
    raw = data.encode() if isinstance(data, str) else data
    try:
        value = parse(raw)
    except ValueError as error:
        assert str(error).startswith("some.json: ") and str(error).isprintable()
    else:
        assert value == json.loads(raw.decode())


REFUSED = {
    "empty": (b"", "config is not valid JSON at byte 0"),
    # Python 3.13 points at the comma, 3.11 at what follows it.
    "trailing comma": (b'{"a": 1,}', "config is not valid JSON at byte "),
    "trailing text": (b"{} {}", "config is not valid JSON at byte 3"),
    "byte place after wide characters": (b'{"\xc3\xa9": ?}', "config is not valid JSON at byte 7"),
    "byte-order mark": (b"\xef\xbb\xbf{}", "byte-order mark"),
    "UTF-16": ("{}".encode("utf-16"), "config is not UTF-8 (byte 0)"),
    "UTF-16 without mark": ("{}".encode("utf-16-le"), "config is not valid JSON at byte 1"),
    "overlong": (b'{"\xc0\xaf": 1}', "config is not UTF-8 (byte 2)"),
    "surrogate bytes": (b'{"\xed\xa0\x80": 1}', "config is not UTF-8 (byte 2)"),
    "NaN": (b'{"a": NaN}', "NaN is not a JSON number"),
    "Infinity": (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
    "float overflow": (b'{"a": 1e999}', "number '1e999' is out of range"),
    "long float": (b'{"a": 0.' + b"1" * 70 + b"}", "is out of range"),
    "long integer": (b'{"a": ' + b"9" * 3000 + b"}", "integer of 3000 digits is out of range"),
    "minus zero": (b'{"a": -0}', "-0 is not an integer"),
    "duplicate": (b'{"a": {"b": 1, "b": 1}}', "duplicate key 'b'"),
    "duplicate by escape": (b'{"a": 1, "\\u0061": 2}', "duplicate key 'a'"),
    "too deep": (b"[[[[[]]]]]", "config is nested deeper than 4 levels"),
    "too deep behind backslashes": (
        rb'["\\", [[[[]]]], "]"]',
        "config is nested deeper than 4 levels",
    ),
    "too deep behind a quote": (rb'["\\\"[", [[[[]]]]]', "config is nested deeper than 4 levels"),
    "too many": (b"[" + b"0," * 64 + b"0]", "config is too complex: 65 entries, the limit is 64"),
    "too many closed": (b"]" * 65, "config is too complex: 65 entries, the limit is 64"),
    "too large": (b" " * 4097, "config of 4097 bytes is over the limit of 4096"),
    "raw control character": (b'{"a": "\n"}', "config is not valid JSON at byte 7"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, refuses: Refuses) -> None:
    data, core = REFUSED[case]
    refuses(lambda: parse(data), core)


DIGITS = "1234567890123456789012"


@pytest.mark.parametrize("text", [DIGITS[:21], f"-{DIGITS[:20]}", f'"{DIGITS}"', f'"-{DIGITS}"'])
def test_integers_up_to_21_characters_and_all_strings_are_read(text: str) -> None:
    assert parse(f"[{text}]".encode()) == json.loads(f"[{text}]")


@pytest.mark.parametrize("text", [DIGITS, f"-{DIGITS[:21]}"])
def test_integers_of_22_characters_are_refused(text: str, refuses: Refuses) -> None:
    core = f"integer of 22 digits is out of range ('{text}')"
    refuses(lambda: parse(f"[{text}]".encode()), core)


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'[{"a":'])
def test_deep_nesting_never_recurses(unit: bytes, refuses: Refuses) -> None:
    limits = JsonLimits(size=10**7, entries=10**6, depth=64)
    before = sys.getrecursionlimit()
    # With the guard of the interpreter out of the way, recursion would kill the process.
    sys.setrecursionlimit(10**6)
    try:
        refuses(lambda: parse(unit * 100_000, limits), "config is nested deeper than 64 levels")
    finally:
        sys.setrecursionlimit(before)


def test_brackets_in_strings_count_for_nothing() -> None:
    text = '{"a": "' + "[{," * 100 + '\\"]", "b\\\\": 1}'
    assert parse(text.encode())["b\\"] == 1


@pytest.mark.parametrize("tail", [b"", b"\\", b'\\"', b'"'])
def test_scan_of_unfinished_strings_is_linear(tail: bytes, refuses: Refuses) -> None:
    limits = JsonLimits(size=10**7, entries=10**6, depth=8)
    refuses(lambda: parse(b'{"' + b'\\"' * 10**6 + tail, limits), "config is not valid JSON")


@pytest.mark.parametrize("length", [*range(55, 70), *range(120, 134), 1000])
def test_a_string_of_any_length_ends_where_it_ends(length: int, refuses: Refuses) -> None:
    """By hand: looked at 64 bytes at a time, and what is behind the last of them."""
    text = b'["' + b"[" * length + b'", '
    assert parse(text + b'[[["]"]]]]') == ["[" * length, [[["]"]]]]
    refuses(lambda: parse(text + b'[[["]", []]]]]'), "config is nested deeper than 4 levels")
    refuses(lambda: parse(text + b"-0]"), "-0 is not an integer")


@given(marks=st.lists(st.booleans(), max_size=300))
def test_marks_are_counted_as_one_by_one(marks: list[bool]) -> None:
    """By loop."""
    odd, found = False, []
    for mark in marks:
        odd ^= mark
        found.append(odd)
    assert _odd_so_far(np.array(marks, bool)).tolist() == found


def test_a_file_must_hold_an_object(tmp_path: Path, refuses: Refuses) -> None:
    path = tmp_path / "x.json"
    path.write_text("[1]", encoding="utf-8")
    core = "config must be a JSON object, not [1]"
    refuses(lambda: read_json_object(path, subject="config", limits=LIMITS), core)


def test_a_large_file_is_refused_unread(tmp_path: Path, refuses: Refuses) -> None:
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(10**9)
    core = "file of 1000000000 bytes is over the limit of 4096"
    refuses(lambda: read_json_object(path, subject="config", limits=LIMITS), core)
