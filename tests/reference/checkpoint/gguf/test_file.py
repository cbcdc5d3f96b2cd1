"""The container: values, arrays and tensors come out as they were written. By hand."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.gguf.dimensions import shape_listed_as
from lockstep.reference.checkpoint.gguf.file import GgufFile
from tests import gguf_bytes as g

NUMBERS = {
    **{g.U8: 255, g.I8: -128, g.U16: 65535, g.I16: -32768, g.U32: 2**32 - 1, g.I32: -(2**31)},
    **{g.F32: 0.1, g.U64: 2**64 - 1, g.I64: -(2**63), g.F64: 0.1},
}


def read(tmp_path: Path, data: bytes) -> GgufFile:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    return GgufFile(path)


def test_single_values(tmp_path):
    pairs = [g.pair(f"k{kind}", kind, value) for kind, value in NUMBERS.items()]
    pairs += [g.pair("yes", g.BOOL, 1), g.pair("no", g.BOOL, 0), g.pair("text", g.STRING, "é\n😀")]
    found = read(tmp_path, g.container(pairs, [g.info("x", [8])], bytes(32))).metadata
    expected = {f"k{kind}": value for kind, value in NUMBERS.items()}
    expected[f"k{g.F32}"] = float(np.float32(0.1))
    assert found == expected | {"yes": True, "no": False, "text": "é\n😀"}
    assert found["yes"] is True


def test_arrays(tmp_path):
    pairs = [g.array(f"k{kind}", kind, [value, 1]) for kind, value in NUMBERS.items()]
    pairs += [g.array("flags", g.BOOL, [1, 0]), g.array("texts", g.STRING, ["", "é", "a b"])]
    pairs += [g.array("none", g.STRING, []), g.array("bad", g.BOOL, [1, 2])]
    file = read(tmp_path, g.container(pairs, [g.info("x", [8])], bytes(32)))
    for kind, value in NUMBERS.items():
        expected = [float(np.float32(0.1)), 1.0] if kind == g.F32 else [value, 1]
        assert file.array(f"k{kind}") == expected
    assert file.array("flags") == [True, False]
    assert file.array("texts") == ["", "é", "a b"]
    assert file.array("none") == []
    with pytest.raises(InputError, match="holds a bool that is not 0 or 1"):
        file.array("bad")
    with pytest.raises(InputError, match="'gone' must be an array"):
        file.array("gone")


def test_a_string_across_the_border_of_two_reads(tmp_path, monkeypatch):
    monkeypatch.setattr("lockstep.reference.checkpoint.gguf.cursor.CHUNK", 16)
    texts = ["x" * length for length in range(40)]
    file = read(
        tmp_path, g.container([g.array("k", g.STRING, texts)], [g.info("x", [8])], bytes(32))
    )
    assert file.array("k") == texts


def test_the_sizes_are_listed_fastest_first(tmp_path):
    """By hand: 2 outputs and 3 inputs stand as [3, 2]; the bytes are those of NumPy."""
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    data = values.tobytes() + bytes(8)
    file = read(tmp_path, g.container([], [g.info("x", [3, 2])], data))
    np.testing.assert_array_equal(file.read("x"), values)
    assert shape_listed_as([3, 2, 5]) == (5, 2, 3)


def test_a_square_matrix_is_not_turned(tmp_path):
    values = np.arange(64, dtype="<f4").reshape(8, 8)
    file = read(tmp_path, g.container([], [g.info("x", [8, 8])], values.tobytes()))
    np.testing.assert_array_equal(file.read("x"), values)


@pytest.mark.parametrize("alignment", [8, 32, 128])
def test_tensors_of_several_types(tmp_path, alignment):
    rng = np.random.default_rng(0)
    stored = {
        "f32": (0, rng.standard_normal((3, 5)).astype("<f4")),
        "f16": (1, rng.standard_normal(7).astype("<f2")),
        "bf16": (30, rng.standard_normal((2, 3, 4)).astype(ml_dtypes.bfloat16)),
        "blocks": (8, rng.integers(0, 256, (4, 68), np.uint8)),
        "stack": (12, rng.integers(0, 256, (2, 3, 144), np.uint8)),
    }
    infos, data = [], b""
    for name, (kind, values) in stored.items():
        weights, size = g.BLOCK[kind]
        width = values.shape[-1] * values.itemsize // size * weights
        infos.append(g.info(name, [width, *values.shape[-2::-1]], kind, len(data)))
        data += values.tobytes()
        data += bytes(-len(data) % alignment)
    pairs = [g.pair("general.alignment", g.U32, alignment)]
    file = read(tmp_path, g.container(pairs, infos, data, alignment=alignment))
    for name, (_, values) in stored.items():
        found = file.read(name)
        octets = found.blocks if isinstance(found, BlockTensor) else found
        assert octets.dtype == values.dtype and octets.shape == values.shape
        assert octets.tobytes() == values.tobytes()
    assert file.read("blocks").shape == (4, 64)
    assert file.read("stack").shape == (2, 3, 256)
    np.testing.assert_array_equal(file.read_rows("f32", 1, 3), stored["f32"][1][1:3])
    np.testing.assert_array_equal(file.read_rows("blocks", 2, 3).blocks, stored["blocks"][1][2:3])
    np.testing.assert_array_equal(file.read_rows("stack", 1, 2).blocks, stored["stack"][1][1:])
    assert file.read_rows("bf16", 1, 1).shape == (0, 3, 4)
    for start, stop in ((-1, 1), (2, 1), (0, 5)):
        with pytest.raises(IndexError):
            file.read_rows("blocks", start, stop)
    with pytest.raises(IndexError):
        file.read_rows("f16", 0, 1)
    with pytest.raises(KeyError):
        file.read("gone")


def test_version_2(tmp_path):
    assert (
        read(tmp_path, g.container([], [g.info("x", [8])], bytes(32), version=2)).read("x").size
        == 8
    )
