"""Reading sound safetensors files. By witness: the safetensors package writes what is read here."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lockstep.reference.checkpoint.dtypes import DTYPES, item_size, numpy_dtype
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

Refuses = Callable[[Callable[[], object], str], str]
SaveTensors = Callable[..., Path]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda name: name != "__metadata__"
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("safetensors") / "x.safetensors"


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Draw an array of any type and shape from raw bytes, so NaN payloads and -0.0 come too."""
    tag, shape = draw(st.sampled_from(list(DTYPES))), draw(SHAPES)
    size = int(np.prod(shape)) * item_size(tag)
    data = draw(st.binary(min_size=size, max_size=size))
    if tag == "BOOL":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, numpy_dtype(tag)).reshape(shape)


@given(
    tensors=st.dictionaries(NAMES, arrays(), max_size=5),
    metadata=st.none()
    | st.dictionaries(
        # The package writes broken JSON for a file of no tensors and an empty object of metadata.
        st.text(st.characters(codec="utf-8")),
        st.text(st.characters(codec="utf-8")),
        min_size=1,
        max_size=3,
    ),
)
def test_what_the_package_writes_is_read_bit_by_bit(
    tensors: dict[str, np.ndarray],
    metadata: dict[str, str] | None,
    scratch: Path,
    save_tensors: SaveTensors,
) -> None:
    file = SafetensorsFile(save_tensors(scratch, tensors, metadata))
    assert file.metadata == (metadata or {})
    assert file.entries.keys() == tensors.keys()
    for name, expected in tensors.items():
        got = file.read(name)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert got.tobytes() == expected.tobytes()


@settings(max_examples=50)
@given(array=arrays().filter(lambda a: a.ndim > 0), data=st.data())
def test_rows_are_a_slice_of_the_whole(
    array: np.ndarray, data: st.DataObject, scratch: Path, save_tensors: SaveTensors
) -> None:
    file = SafetensorsFile(save_tensors(scratch, {"first": array, "x": array}))
    stop = data.draw(st.integers(0, len(array)))
    start = data.draw(st.integers(0, stop))
    got = file.read_rows("x", start, stop)
    assert got.shape == array[start:stop].shape
    assert got.tobytes() == array[start:stop].tobytes()


def test_rows_that_are_not_there(tmp_path: Path, save_tensors: SaveTensors) -> None:
    file = SafetensorsFile(save_tensors(tmp_path / "x", {"x": np.zeros((3, 2), np.int8)}))
    for start, stop in ((-1, 2), (0, 4), (2, 1)):
        with pytest.raises(IndexError, match="of 'x', which has 3"):
            file.read_rows("x", start, stop)
    with pytest.raises(KeyError, match="no tensor 'y'"):
        file.read("y")


def test_metadata_that_is_null(tmp_path: Path) -> None:
    """By hand: so MLX says that there is none, in every adapter that mlx-lm trains."""
    text = b'{"__metadata__":null,"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\x07")
    file = SafetensorsFile(path)
    assert file.metadata == {}
    assert file.read("x").tolist() == [7]


def test_bf16_by_hand(tmp_path: Path) -> None:
    codes = [0x3F80, 0xBF80, 0x0001, 0x8000, 0x7F80, 0x7FC1, 0x4049]
    span = {"dtype": "BF16", "shape": [7], "data_offsets": [0, 14]}
    text = json.dumps({"x": span}).encode()
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<7H", *codes))
    got = SafetensorsFile(path).read("x")
    assert got.dtype == ml_dtypes.bfloat16
    # A bfloat16 is the upper half of a float32.
    expected = np.array([c << 16 for c in codes], np.uint32).view(np.float32)
    assert got.view(np.uint16).tolist() == codes
    assert np.array_equal(got.astype(np.float32), expected, equal_nan=True)


@pytest.mark.parametrize("padding", range(9))
def test_s40_data_may_start_anywhere(padding: int, tmp_path: Path) -> None:
    span = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}
    text = json.dumps({"x": span}).encode() + b" " * padding
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<2d", 1.5, -2.5))
    got = SafetensorsFile(path).read("x")
    assert got.tolist() == [1.5, -2.5]
    assert got.flags.aligned and got.flags.writeable


def test_s39_values_that_are_no_numbers_pass(tmp_path: Path, save_tensors: SaveTensors) -> None:
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    got = SafetensorsFile(save_tensors(tmp_path / "x", {"x": odd})).read("x")
    assert got.tobytes() == odd.tobytes()


def test_s27_empty_tensors_lie_between_others(tmp_path: Path) -> None:
    spans = {
        "a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},
        "b": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
        "c": {"dtype": "F32", "shape": [3, 0], "data_offsets": [2, 2]},
        "d": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]},
    }
    text = json.dumps(spans).encode()
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"abc")
    file = SafetensorsFile(path)
    assert {name: file.read(name).shape for name in spans} == {
        "a": (0,),
        "b": (2,),
        "c": (3, 0),
        "d": (1,),
    }


def test_s16_lookalike_names_pass_with_a_warning(tmp_path: Path, save_tensors: SaveTensors) -> None:
    zero = np.zeros(1, np.int8)
    plain = SafetensorsFile(save_tensors(tmp_path / "x", {"caf\u00e9": zero, "cafe": zero}))
    assert plain.warnings == []
    twins = SafetensorsFile(save_tensors(tmp_path / "x", {"caf\u00e9": zero, "cafe\u0301": zero}))
    assert len(twins.entries) == 2
    assert "differ in Unicode form only" in twins.warnings[0]


def test_a_boolean_is_0_or_1(tmp_path: Path, refuses: Refuses) -> None:
    text = b'{"x":{"dtype":"BOOL","shape":[2,3],"data_offsets":[0,6]}}'
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes([0, 1, 1, 0, 7, 2]))
    core = "neither 0 nor 1: number 4 is 7 (tensor 'x')"
    file = SafetensorsFile(path)
    refuses(lambda: file.read("x"), core)
    refuses(lambda: file.read_rows("x", 1, 2), core)
    refuses(lambda: file.read_numbers("x", 3, 6), core)
    assert file.read_rows("x", 0, 1).tolist() == [[False, True, True]]


class TestS38AFileThatChangesAfterItWasOpened:
    """Truth by hand: the file is spoilt between the header and the data."""

    @pytest.fixture
    def file(self, tmp_path: Path, save_tensors: SaveTensors) -> SafetensorsFile:
        return SafetensorsFile(save_tensors(tmp_path / "x", {"x": np.arange(8)}))

    def test_truncated(self, file: SafetensorsFile, refuses: Refuses) -> None:
        os.truncate(file.path, file.path.stat().st_size - 1)
        refuses(lambda: file.read("x"), "file changed while reading")

    def test_grown(self, file: SafetensorsFile, refuses: Refuses) -> None:
        with file.path.open("ab") as end:
            end.write(b"x")
        refuses(lambda: file.read_rows("x", 0, 1), "file changed while reading")

    def test_replaced(self, file: SafetensorsFile, refuses: Refuses) -> None:
        status = file.path.stat()
        twin = file.path.with_name("twin")
        twin.write_bytes(file.path.read_bytes())
        os.utime(twin, ns=(status.st_atime_ns, status.st_mtime_ns))
        twin.replace(file.path)
        refuses(lambda: file.read("x"), "file changed while reading")

    def test_written_again(self, file: SafetensorsFile, refuses: Refuses) -> None:
        status = file.path.stat()
        os.utime(file.path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        refuses(lambda: file.read("x"), "file changed while reading")

    def test_removed(self, file: SafetensorsFile, refuses: Refuses) -> None:
        file.path.unlink()
        refuses(lambda: file.read("x"), "no such file")

    def test_became_a_fifo(self, file: SafetensorsFile, refuses: Refuses) -> None:
        file.path.unlink()
        os.mkfifo(file.path)
        refuses(lambda: file.read("x"), "not a regular file")
