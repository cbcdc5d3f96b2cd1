"""Malformed GGUF containers, class by class (G01 to G21), each with the message it must get.

Truth: by hand. Each file breaks one rule. `test_hostile_model.py` has the classes from G22 on.
"""

import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.gguf.file import GgufFile
from tests import gguf_bytes as g

KEY, NAME = g.pair("a", g.U8, 1), "general.architecture"
END = struct.pack("<Q", 2**63)


def pairs(*found: bytes, **options) -> bytes:
    """Return a file of metadata and one small tensor."""
    return g.container(list(found), [g.info("x", [8])], bytes(32), **options)


def one(*sizes: int, kind: int = 0, offset: int = 0, data: int = 32, **options) -> bytes:
    return g.container([], [g.info("x", sizes, kind, offset, **options)], bytes(data))


def two(second: int, *, data: int, kind: int = 0) -> bytes:
    """Return two tensors of 40 bytes; the first takes 64 with its padding."""
    infos = [g.info("x", [10], kind), g.info("y", [10], kind, second)]
    return g.container([], infos, bytes(data))


def nested(depth: int) -> bytes:
    return g.pair(
        "k", g.ARRAY, struct.pack("<IQ", g.ARRAY, 1) * depth + struct.pack("<IQ", g.U8, 0)
    )


# id: the file, and the core of the message.
CASES: dict[str, tuple[bytes, str]] = {
    "G01 empty": (b"", "file is empty"),
    "G01 23 bytes": (g.container([], [])[:23], "not a GGUF file: 23 bytes"),
    "G01 no magic": (b"\0" * 64, "not a GGUF file: it begins with [0, 0, 0, 0]"),
    "G01 GGML": (b"lmgg" + b"\0" * 64, "not a GGUF file"),
    "G01 GGJT": (b"tjgg" + b"\0" * 64, "not a GGUF file"),
    "G01 safetensors": (b'{"x":' + b" " * 64, "not a GGUF file, it looks like JSON text"),
    "G01 LFS": (b"version https://git-lfs.github.com/spec", "it looks like a Git-LFS pointer"),
    "G02 version 0": (pairs(version=0), "unsupported GGUF version 0, 2 and 3 are read"),
    "G02 version 1": (pairs(version=1), "unsupported GGUF version 1"),
    "G02 version 4": (pairs(version=4), "unsupported GGUF version 4"),
    "G02 big-endian": (pairs(version=0x03000000), "its byte order is swapped (big-endian)"),
    "G03 tensors 2**63": (pairs(tensors=2**63), "impossible count of tensors: 9223372036854775808"),
    "G03 tensors 2**64-1": (pairs(tensors=2**64 - 1), "impossible count of tensors"),
    "G03 tensors, some": (
        pairs(tensors=99),
        "impossible count of tensors: 99, 1 to 2 are possible",
    ),
    "G03 no tensors": (pairs(tensors=0), "impossible count of tensors: 0"),
    "G03 pairs 2**63": (pairs(count=2**63), "impossible count of metadata: 9223372036854775808"),
    "G03 pairs, some": (pairs(KEY, count=99), "impossible count of metadata: 99, at most"),
    "G04 empty key": (pairs(g.pair("", g.U8, 1)), "bad metadata key ''"),
    "G04 long key": (pairs(g.pair("k" * 65536, g.U8, 1)), "bad metadata key 'kkk"),
    "G04 key length 2**63": (pairs(END + KEY), "bad length 9223372036854775808 of a metadata key"),
    "G04 key past the end": (
        pairs(struct.pack("<Q", 999) + KEY),
        "bad length 999 of a metadata key",
    ),
    "G04 not ASCII": (pairs(g.pair("kéy", g.U8, 1)), "bad metadata key 'kéy'"),
    "G04 a space": (pairs(g.pair("k y", g.U8, 1)), "bad metadata key 'k y'"),
    "G04 an escape": (pairs(g.pair("\x1b[2J", g.U8, 1)), "bad metadata key '\\x1b[2J'"),
    "G05 twice": (pairs(KEY, KEY), "duplicate metadata key 'a'"),
    "G05 too many": (
        pairs(*(g.pair(f"k{i}", g.U8, 1) for i in range(65_537))),
        "impossible count of metadata: 65537, at most 65536 are possible",
    ),
    "G06 length 2**63": (
        pairs(g.pair("k", g.STRING, END)),
        "bad length 9223372036854775808 of meta",
    ),
    "G06 past the end": (pairs(g.pair("k", g.STRING, struct.pack("<Q", 999))), "bad length 999 of"),
    "G06 invalid UTF-8": (
        pairs(g.string("k") + b"\x08\0\0\0" + g.string(b"a\xff")),
        "metadata 'k' is not UTF-8: byte 1",
    ),
    "G06 overlong": (
        pairs(g.string("k") + b"\x08\0\0\0" + g.string(b"\xc0\x80")),
        "is not UTF-8: byte 0",
    ),
    "G06 NUL": (pairs(g.pair("k", g.STRING, "a\0b")), "metadata 'k' holds a NUL: 'a\\x00b'"),
    "G06 too long": (
        pairs(g.pair("k", g.STRING, "x" * ((16 << 20) + 1))),
        "header holds over 16777216 bytes of text",
    ),
    "G07 type 13": (pairs(g.pair("k", 13, b"\0" * 8)), "unknown value type 13 of metadata 'k'"),
    "G07 type 255": (pairs(g.pair("k", 255, b"\0" * 8)), "unknown value type 255"),
    "G07 type -1": (pairs(g.pair("k", 2**32 - 1, b"\0" * 8)), "unknown value type 4294967295"),
    "G07 bool 2": (pairs(g.pair("k", g.BOOL, 2)), "metadata 'k' is a bool of 2, it must be 0 or 1"),
    "G08 length 2**63": (
        pairs(g.array("k", g.U8, b"", 2**63)),
        "impossible length 92233720368547758",
    ),
    "G08 past the end": (
        pairs(g.array("k", g.F64, b"", 99)),
        "impossible length 99 of metadata 'k'",
    ),
    "G08 strings 2**63": (
        pairs(g.array("k", g.STRING, b"", 2**63)),
        "impossible count: 92233720368",
    ),
    "G08 item type": (pairs(g.array("k", 99, b"", 1)), "unknown item type 99 of metadata 'k'"),
    "G08 a string past the end": (
        pairs(g.array("k", g.STRING, ["a", struct.pack("<Q", 2**40)])),
        "bad length 1099511627776 of string 1 of metadata 'k'",
    ),
    "G09 depth 5": (pairs(nested(5)), "metadata 'k' is an array of arrays, which is not read"),
    "G09 depth 3000": (pairs(nested(3000)), "metadata 'k' is an array of arrays"),
    "G11 alignment 0": (pairs(g.pair("general.alignment", g.U32, 0)), "bad general.alignment"),
    "G11 13": (pairs(g.pair("general.alignment", g.U32, 13)), "a power of two from 8 to 65536"),
    "G11 2**31": (pairs(g.pair("general.alignment", g.U32, 2**31)), "(found 2147483648)"),
    "G11 negative": (pairs(g.pair("general.alignment", g.I32, -32)), "(found -32)"),
    "G11 text": (pairs(g.pair("general.alignment", g.STRING, "32")), "(found '32')"),
    "G11 bool": (pairs(g.pair("general.alignment", g.BOOL, 1)), "(found true)"),
    "G11 array": (pairs(g.array("general.alignment", g.U32, [32])), "bad general.alignment"),
    "G12 rank 0": (one(), "bad rank 0: 1 to 4 dimensions (tensor 'x')"),
    "G12 rank 5": (one(1, 1, 1, 1, 8), "bad rank 5"),
    "G12 rank 2**32-1": (one(8, rank=2**32 - 1), "bad rank 4294967295"),
    "G13 negative": (one(-8), "bad dimensions [18446744073709551608]"),
    "G13 INT64_MAX": (one(2**63 - 1), "bad dimensions [9223372036854775807]"),
    "G13 INT64_MAX, 2, 1, 1": (one(2**63 - 1, 2, 1, 1), "bad dimensions"),
    "G13 zero": (one(0), "bad dimensions [0] (tensor 'x')"),
    "G13 zero among others": (one(2**62, 0, 2**62), "bad dimensions"),
    "G14 wraps": (one(2**32, 2**32), "bad dimensions [4294967296, 4294967296]"),
    "G14 wraps to 4": (one(4194305, 4194305, 211106198978564), "bad dimensions"),
    "G14 wraps when padded": (one(2**62 - 4), "bad dimensions"),
    "G15 Q8_0 of 8": (one(8, kind=8), "rows of 8 weights are no multiple of 32, a block of Q8_0"),
    "G15 Q6_K of 8": (one(8, kind=14), "rows of 8 weights are no multiple of 256, a block of Q6_K"),
    "G15 the other way round": (one(8, 256, kind=14), "rows of 8 weights"),
    "G16 removed": (one(32, kind=4), "unsupported tensor type 4 (Q4_2, removed), F32, F16, BF16"),
    "G16 IQ2_XS": (one(256, kind=17), "unsupported tensor type 17 (IQ2_XS)"),
    "G16 unknown": (one(32, kind=99), "unsupported tensor type 99, F32"),
    "G16 negative": (one(32, kind=-1), "unsupported tensor type 4294967295"),
    "G17 64 bytes": (g.container([], [g.info("x" * 64, [8])], bytes(32)), "bad tensor name 'xxx"),
    "G17 empty": (g.container([], [g.info("", [8])], bytes(32)), "bad tensor name ''"),
    "G17 twice": (g.container([], [g.info("x", [8])] * 2, bytes(64)), "duplicate tensor name 'x'"),
    "G17 control": (g.container([], [g.info("a\nb", [8])], bytes(32)), "bad tensor name 'a\\x0ab'"),
    "G17 not UTF-8": (
        g.container([], [g.info(b"\xff", [8])], bytes(32)),
        "a tensor name is not UTF-8",
    ),
    "G18 not aligned": (two(40, data=128), "bad offset 40 of tensor 'y': it must be 64"),
    "G18 overlapping": (two(0, data=128), "bad offset 0 of tensor 'y': it must be 64"),
    "G18 a hole": (two(96, data=160), "bad offset 96 of tensor 'y'"),
    "G18 1 << 40": (two(1 << 40, data=128), "bad offset 1099511627776 of tensor 'y'"),
    "G18 wraps": (two(-32, data=128), "bad offset 18446744073709551584 of tensor 'y'"),
    "G18 the first": (
        one(8, offset=32, data=64),
        "bad offset 32 of tensor 'x': it must be 0 (the fir",
    ),
    "G18 descending": (
        g.container([], [g.info("y", [8], 0, 32), g.info("x", [8], 0, 0)], bytes(64)),
        "bad offset 32 of tensor 'y': it must be 0",
    ),
    "G19 short span": (
        two(32, data=128),
        "bad offset 32 of tensor 'y': it must be 64 (where 'x' ends",
    ),
    "G20 no data": (
        two(64, data=0),
        "file truncated: needs 200 bytes, has 96 (tensor 'x' ends past",
    ),
    "G20 one byte": (two(64, data=103), "file truncated: needs 200 bytes, has 199"),
    "G20 in the list": (
        g.container([], [g.info("x" * 40, [8])])[:60],
        "bad length 40 of a tensor nam",
    ),
    "G21 trailing": (two(64, data=129), "1 bytes after the last tensor belong to no tensor"),
    "G21 a block of them": (two(64, data=4096), "bytes after the last tensor belong to no tensor"),
}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "x.gguf"


@pytest.mark.parametrize("case", CASES)
def test_refused(case, file, refuses):
    data, core = CASES[case]
    file.write_bytes(data)
    assert "x.gguf: " in refuses(lambda: open_checkpoint(file), core)


def test_every_class_is_here():
    found = {case[:3] for case in [*CASES, *HUGE]}
    assert found == {f"G{i:02d}" for i in range(1, 22)}


def sparse(path: Path, head: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


HUGE = {
    "G10 2**30 empty strings": (
        g.container([g.array("k", g.STRING, b"", 2**30)], [])[:-8],
        "arrays of over 2000000 strings",
    ),
    "G08 an array of 8 GiB": (
        g.container([g.array("k", g.F64, b"", 2**30)], [], tensors=1),
        "header is over the limit of 268435456 bytes",
    ),
    "G06 a string of 8 GiB": (
        g.container([g.pair("k", g.STRING, struct.pack("<Q", 2**33))], [], tensors=1),
        "header holds over 16777216 bytes of text",
    ),
    "G13 rope divisors of 8 GiB": (
        g.container(
            [g.pair(NAME, g.STRING, "qwen3")]
            + [g.pair(key, *value) for key, value in g.HYPERPARAMETERS.items()],
            [g.info("rope_freqs.weight", [2**31])],
        ),
        "rope_freqs.weight is F32 [2147483648]",
    ),
}


@pytest.mark.parametrize("case", HUGE)
def test_what_claims_much_takes_little(case, file, refuses):
    head, core = HUGE[case]
    size = 1 << 34 if "divisors" not in case else len(head) + (1 << 33)
    sparse(file, head, size)
    tracemalloc.start()
    began = time.process_time()
    refuses(lambda: open_checkpoint(file), core)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    assert time.process_time() - began < 1


def test_many_keys_take_time_in_proportion(file):
    def seconds(count: int) -> float:
        file.write_bytes(pairs(*(g.pair(f"k{i}", g.U8, 1) for i in range(count))))
        began = time.process_time()
        with pytest.raises(InputError, match="unsupported architecture"):
            open_checkpoint(file)
        return time.process_time() - began

    small = min(seconds(2_000) for _ in range(3))
    assert seconds(20_000) < 40 * small


def test_a_missing_last_padding_is_mentioned(file):
    file.write_bytes(one(3, data=32))
    assert GgufFile(file).warnings == []
    file.unlink()
    file.write_bytes(one(3, data=12))
    assert GgufFile(file).warnings == ["the padding after the last tensor is missing"]
    file.unlink()
    file.write_bytes(one(3, data=20))
    assert GgufFile(file).read("x").tolist() == [0, 0, 0]


def test_a_file_that_changes_is_noticed(file, refuses):
    file.write_bytes(g.model())
    checkpoint = open_checkpoint(file)
    file.write_bytes(g.model()[:-4] + b"1234")
    refuses(lambda: checkpoint.tensor("model.norm.weight"), "file changed while reading")


def test_every_cut_is_refused(file):
    """By law: no prefix of a sound file is one, but for the last padding."""
    data = g.model(extra=[g.array("k", g.STRING, ["a", "bc"])])
    for length in range(0, len(data), 7):
        file.unlink(missing_ok=True)
        file.write_bytes(data[:length])
        with pytest.raises(InputError):
            open_checkpoint(file)
