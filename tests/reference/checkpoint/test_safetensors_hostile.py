"""Malformed safetensors files, class by class (S01 to S40), each with the message it must get.

Truth: by hand. Each file breaks one rule of the format. The safetensors package witnesses that the
files which it refuses too are really malformed.
"""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors

from lockstep.reference.checkpoint.safetensors import SafetensorsFile

Refuses = Callable[[Callable[[], object], str], str]

F32: dict[str, Any] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
FIELDS = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'


def pack(header: Any, data: bytes = b"\0" * 4, length: int | None = None) -> bytes:
    """Return a file with this header, which need not be true, nor even JSON."""
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(**changes: Any) -> bytes:
    """Return a file with one F32 tensor `x`, of which some fields are changed."""
    return pack({"x": {**F32, **changes}})


def u8(*spans: tuple[int, int], data: int) -> bytes:
    """Return a file with U8 tensors a, b, c ... at the given spans."""
    header = {
        chr(97 + i): {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for i, (begin, end) in enumerate(spans)
    }
    return pack(header, b"\0" * data)


TINY = pack({"x": F32})

# id: the file and the core of the message. Names that end in "!" mark what the package accepts.
CASES: dict[str, tuple[bytes, str]] = {
    "S01 empty": (b"", "file is empty"),
    "S02 1 byte": (b"\x08", "file is shorter than the 8-byte header length"),
    "S02 7 bytes": (b"\x08" * 7, "file is shorter than the 8-byte header length"),
    "S03 length 0": (pack(b"", b""), "header is empty"),
    "S03 length 0 with data": (pack(b"", b"\0" * 99), "header is empty"),
    "S04 one past the end": (pack(b"{}", b"", 3), "header length 3 exceeds file (10 bytes)"),
    "S05 2**63": (pack(b"{}", b"", 2**63), "header length 9223372036854775808 exceeds file"),
    "S05 2**64-1": (pack(b"{}", b"", 2**64 - 1), "exceeds file (10 bytes)"),
    "S05 2**32+2": (pack(b"{}", b"", 2**32 + 2), "exceeds file (10 bytes)"),
    "S07 many entries!": (
        pack(b'{"__metadata__":{' + b'"a":"",' * 1_000_001 + b'"b":""}}', b""),
        "header is too complex: 1000003 entries, the limit is 1000000",
    ),
    "S08 space!": (pack(b" {}", b""), "header must start with '{', not byte 0x20"),
    "S08 space after a length that is a brace!": (
        pack(b" {}" + b" " * (ord("{") - 3), b""),
        "header must start with '{', not byte 0x20",
    ),
    "S08 mark": (pack(b"\xef\xbb\xbf{}", b""), "header must start with '{', not byte 0xef"),
    "S08 list": (pack(b"[{}]", b""), "header must start with '{', not byte 0x5b"),
    "S09 invalid": (pack(b'{"\xff":1}', b""), "header is not UTF-8 (byte 2)"),
    "S09 overlong": (pack(b'{"\xc0\x80":1}', b""), "header is not UTF-8 (byte 2)"),
    "S09 UTF-16": (pack("{}".encode("utf-16-le"), b""), "bad header padding: byte 0x00"),
    # Python 3.13 points at the comma, 3.11 at what follows it.
    "S10 trailing comma": (pack(b"{%b,}" % b'"x":{}', b""), "header is not valid JSON at byte "),
    "S10 garbage": (pack(b"{}{}", b""), "header is not valid JSON at byte 2"),
    "S10 cut": (pack(b'{"x":', b""), "header is not valid JSON at byte 5"),
    "S11 NUL": (pack(b"{}  \0 ", b""), "bad header padding: byte 0x00"),
    "S11 tab!": (pack(b"{}\t", b""), "bad header padding: byte 0x09"),
    "S11 newline!": (pack(b"{} \n", b""), "bad header padding: byte 0x0a"),
    "S12 lists": (pack(b'{"x":' + b"[" * 100_000, b""), "header is nested deeper than 8 levels"),
    "S12 objects": (pack(b'{"a":' * 100_000, b""), "header is nested deeper than 8 levels"),
    "S13 long integer": (
        pack(b'{"x":{"shape":[%b]}}' % (b"9" * 5000)),
        "integer of 5000 digits is out of range",
    ),
    "S13 1e999": (pack(b'{"x":{"shape":[1e999]}}'), "number '1e999' is out of range"),
    "S13 NaN": (pack(b'{"x":{"shape":[NaN]}}'), "NaN is not a JSON number"),
    "S13 Infinity": (pack(b'{"x":Infinity}'), "Infinity is not a JSON number"),
    "S13 minus zero": (pack(b'{"x":{"data_offsets":[-0,4]}}'), "-0 is not an integer"),
    "S14 duplicate name!": (
        pack(b'{"x":{%b},"x":{%b}}' % (FIELDS.encode(), FIELDS.encode())),
        "duplicate tensor name 'x'",
    ),
    "S15 duplicate field": (
        pack(b'{"x":{"dtype":"I32",%b}}' % FIELDS.encode()),
        "duplicate field 'dtype'",
    ),
    "S16 escaped twin!": (
        pack(b'{"a":{%b},"\\u0061":{%b}}' % (FIELDS.encode(), FIELDS.encode())),
        "duplicate tensor name 'a'",
    ),
    "S17 lone surrogate": (
        pack(b'{"\\ud800":{%b}}' % FIELDS.encode()),
        "tensor name '\\ud800' is not valid text",
    ),
    "S18 empty name!": (pack({"": F32}), "tensor name is empty"),
    "S18 long name!": (pack({"x" * 1025: F32}), "tensor name is longer than 1024 characters"),
    "S18 hostile name": (
        pack({"\x1b[2J\r\n::error::\u202e\0": {**F32, "dtype": "X"}}),
        "tensor '\\x1b[2J\\x0d\\x0a::error::\\u202e\\x00'",
    ),
    "S19 metadata list": (pack({"__metadata__": []}, b""), "__metadata__ must map string to"),
    "S19 metadata number": (pack({"__metadata__": {"a": 1}}, b""), "string to string (key 'a')"),
    "S19 metadata nested": (pack({"__metadata__": {"a": {}}}, b""), "string to string (key 'a')"),
    "S19 metadata surrogate": (
        pack(b'{"__metadata__":{"a":"\\udfff"}}', b""),
        "__metadata__ must map string to string (key 'a')",
    ),
    "S19 metadata duplicate!": (
        pack(b'{"__metadata__":{"a":"1","a":"2"}}', b""),
        "duplicate key 'a' in __metadata__",
    ),
    "S20 null": (pack({"x": None}), "tensor entry must be an object, not null (tensor 'x')"),
    "S20 list": (pack({"x": [1]}), "tensor entry must be an object, not [1]"),
    "S20 empty": (pack({"x": {}}), "tensor entry has no field 'data_offsets'"),
    "S20 no dtype": (pack({"x": {"shape": [], "data_offsets": [0, 4]}}), "has no field 'dtype'"),
    "S20 extra!": (one(strides=[1]), "tensor entry has an unknown field 'strides'"),
    "S21 unknown": (one(dtype="F33"), "unsupported dtype 'F33' (tensor 'x')"),
    "S21 case": (one(dtype="f32"), "unsupported dtype 'f32'"),
    "S21 number": (one(dtype=32), "unsupported dtype 32"),
    "S21 null": (one(dtype=None), "unsupported dtype null"),
    "S21 list": (one(dtype=["F32"]), "unsupported dtype ['F32']"),
    "S21 half bytes!": (one(dtype="F4", shape=[8]), "unsupported dtype 'F4'"),
    "S21 odd half bytes": (one(dtype="F4", shape=[7]), "unsupported dtype 'F4'"),
    "S22 float": (one(shape=[1.0]), "bad shape [1.0]"),
    "S22 true": (one(shape=[True]), "bad shape [true]"),
    "S22 string": (one(shape=["1"]), "bad shape ['1']"),
    "S22 negative": (one(shape=[-1]), "bad shape [-1]"),
    "S22 null": (one(shape=[None]), "bad shape [null]"),
    "S22 nested": (one(shape=[[1]]), "bad shape [[1]]"),
    "S22 no list": (one(shape=1), "bad shape 1"),
    "S22 2**63": (one(shape=[2**63]), "size mismatch: F32 [9223372036854775808] needs"),
    "S22 2**64": (one(shape=[2**64]), "size mismatch"),
    "S23 rank 65!": (one(shape=[1] * 65), "shape of rank 65 is over the limit of 64"),
    "S23 rank 10**6!": (one(shape=[1] * 10**6), "header is too complex"),
    "S24 product wraps to 4": (
        one(dtype="U8", shape=[4194305, 4194305, 211106198978564]),
        "size mismatch: U8 [4194305, 4194305, 211106198978564] needs 3713821",
    ),
    "S25 product wraps to 0": (
        pack({"x": {"dtype": "U8", "shape": [2**32, 2**32], "data_offsets": [0, 0]}}, b""),
        "needs 18446744073709551616 bytes, data_offsets give 0",
    ),
    "S26 no elements, yet bytes": (one(shape=[2**40, 0]), "needs 0 bytes, data_offsets give 4"),
    "S26 too large for NumPy!": (
        one(shape=[2**62, 0], data_offsets=[0, 0])[:-4],
        "over 2**63 bytes",
    ),
    "S27 empty inside another": (u8((0, 4), (2, 2), data=4), "tensors overlap: 'a', 'b'"),
    "S28 one offset": (one(data_offsets=[0]), "bad data_offsets [0]"),
    "S28 three offsets": (one(data_offsets=[0, 4, 4]), "bad data_offsets [0, 4, 4]"),
    "S28 strings": (one(data_offsets=["0", "4"]), "bad data_offsets ['0', '4']"),
    "S28 floats": (one(data_offsets=[0.0, 4.0]), "bad data_offsets [0.0, 4.0]"),
    "S28 bools": (one(data_offsets=[False, 4]), "bad data_offsets [false, 4]"),
    "S28 negative": (one(data_offsets=[-4, 0]), "bad data_offsets [-4, 0]"),
    "S28 reversed": (one(data_offsets=[4, 0]), "bad data_offsets [4, 0]"),
    "S28 empty span": (one(data_offsets=[0, 0]), "needs 4 bytes, data_offsets give 0"),
    "S29 end past the file": (u8((0, 9), data=8), "file truncated: needs"),
    "S29 begin past the file": (u8((0, 8), (8, 8), (8, 9), data=8), "file truncated"),
    "S29 end 2**64-1": (
        one(dtype="U8", shape=[2**64 - 1], data_offsets=[0, 2**64 - 1]),
        "over 2**63 bytes",
    ),
    "S30 same span": (u8((0, 4), (0, 4), data=4), "tensors overlap: 'a', 'b'"),
    "S30 partial": (u8((0, 4), (3, 7), data=7), "tensors overlap: 'a', 'b'"),
    "S30 inside": (u8((0, 8), (2, 4), data=8), "tensors overlap: 'a', 'b'"),
    "S31 hole": (u8((0, 4), (5, 8), data=8), "bytes 4 to 5 of the data belong to no tensor"),
    "S31 late start": (u8((1, 4), data=4), "bytes 0 to 1 of the data belong to no tensor"),
    "S31 trailing": (u8((0, 4), data=5), "1 bytes after the last tensor belong to no tensor"),
    "S31 hidden archive": (TINY + b"PK\x03\x04", "4 bytes after the last tensor belong to no"),
    "S31 data without tensors": (pack(b"{}"), "4 bytes after the last tensor belong to no"),
    "S32 one short": (one(dtype="U8", shape=[5]), "needs 5 bytes, data_offsets give 4"),
    "S32 one long": (one(dtype="U8", shape=[3]), "needs 3 bytes, data_offsets give 4"),
    "S34 cut in the data": (TINY[:-2], "file truncated: needs 73 bytes, has 71"),
    "S34 one byte short": (TINY[:-1], "file truncated: needs 73 bytes, has 72"),
    "S35 byte order": (struct.pack(">Q", 2) + b"{}", "its byte order looks swapped"),
    "S36 Git-LFS": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "looks like a Git-LFS pointer (fetch the file with `git lfs pull`), not safetensors",
    ),
    "S36 HTML": (b"<!DOCTYPE html><html>" + b" " * 99, "looks like an HTML page"),
    "S36 HTML later": (b"\n\n  <html lang=en>", "looks like an HTML page"),
    "S36 XML": (b"<?xml version='1.0'?><Error/>", "looks like an XML page"),
    "S36 ZIP": (b"PK\x03\x04" + b"\0" * 99, "looks like a ZIP archive"),
    "S36 pickle": (b"\x80\x04\x95" + b"\0" * 99, "looks like a Python pickle"),
    "S36 GGUF": (b"GGUF\x03\0\0\0" + b"\0" * 99, "looks like a GGUF file"),
    "S36 gzip": (b"\x1f\x8b\x08" + b"\0" * 99, "looks like a gzip archive"),
    "S36 gzip that gives a length": (
        b"\x1f\x8b\x08" + b"\0" * 600_000,
        "looks like a gzip archive",
    ),
    "S36 npy": (b"\x93NUMPY" + b"\0" * 99, "looks like a NumPy .npy file"),
    "S36 HDF5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 99, "looks like an HDF5 file"),
    "S36 JSON": (b'{"weight_map": {}}', "looks like JSON text"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, tmp_path: Path, refuses: Refuses) -> None:
    data, core = CASES[case]
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    line = refuses(lambda: SafetensorsFile(path), core)
    assert "x.safetensors: " in line
    if case.endswith("!"):
        safetensors.deserialize(data)
    else:
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(data)


def test_every_class_is_here() -> None:
    # S06, S33 and S37 to S40 have tests of their own here, in test_files and in test_safetensors.
    apart = {"S06", "S33", "S37", "S38", "S39", "S40"}
    assert {case[:3] for case in CASES} | apart == {f"S{i:02d}" for i in range(1, 41)}


def test_s06_a_header_over_the_limit(tmp_path: Path, refuses: Refuses) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 10**9) + b"{")
        file.truncate(10**10)
    core = "header of 1000000000 bytes is over the limit of 16777216"
    refuses(lambda: SafetensorsFile(path), core)
    refuses(lambda: SafetensorsFile(path, header_limit=10**8), "over the limit of 100000000")


def test_s33_many_tensors_over_the_same_bytes(tmp_path: Path, refuses: Refuses) -> None:
    entry = {"dtype": "U8", "shape": [160_000], "data_offsets": [0, 160_000]}
    path = tmp_path / "x.safetensors"
    path.write_bytes(pack({f"t{i}": entry for i in range(100_000)}, b"\0" * 160_000))
    refuses(lambda: SafetensorsFile(path), "tensors overlap: 't0', 't1'")


@pytest.mark.parametrize("case", ["honest", "lying shape", "lying length", "short"])
def test_opening_allocates_nothing_of_the_size_that_is_claimed(case: str, tmp_path: Path) -> None:
    size = 10**11
    span = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    if case == "lying shape":
        span["shape"] = [10**18]
    text = json.dumps({"x": span}).encode()
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", size if case == "lying length" else len(text)) + text)
        file.truncate(8 + len(text) + (1000 if case == "short" else size))
    tracemalloc.start()
    try:
        SafetensorsFile(path)
    except ValueError:
        assert case != "honest"
    else:
        assert case == "honest"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_refusal_takes_work_in_proportion_to_the_file(tmp_path: Path) -> None:
    """By law: ten times the entries, ten times the calls. Calls are counted, no clock is read."""

    def calls(count: int) -> int:
        entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
        path = tmp_path / "x.safetensors"
        path.write_bytes(pack({f"t{i}": entry for i in range(count)}, b"\0"))
        seen = []
        sys.setprofile(lambda frame, event, value: seen.append(event))
        try:
            with pytest.raises(ValueError, match="overlap"):
                SafetensorsFile(path)
        finally:
            sys.setprofile(None)
        return len(seen)

    assert calls(20_000) < 12 * calls(2_000)
