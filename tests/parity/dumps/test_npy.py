"""Arrays of .npy and .npz: what NumPy writes comes back, what it would not is refused in a line."""

import io
import os
import tracemalloc
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lockstep.parity.dumps.npy import HEADER, open_folder, open_npz, parsed
from lockstep.reference.checkpoint.errors import InputError

NUMBERS = ["<f4", "<f2", "<f8", "|b1", "|i1", "<u2", "<i8", ">f4", "<c8"]


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def with_header(text: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    head = text.encode("latin-1")
    return b"\x93NUMPY" + version + len(head).to_bytes(2, "little") + head + data


@given(
    st.sampled_from(NUMBERS),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    st.booleans(),
)
def test_what_numpy_saves_comes_back(dtype, shape, column_major):
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape), np.dtype(dtype))
    array = np.asfortranarray(array) if column_major else array
    found = parsed(saved(array), "x.npy", "x")
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


def test_two_bytes_without_a_type_are_bfloat16(tmp_path):
    array = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    np.save(tmp_path / "logits.npy", array)
    shapes, read = open_folder(tmp_path)
    assert shapes == {"logits": (1, 2)}
    assert read("logits").dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read("logits"), array)


def test_folders_and_archives_name_steps_by_their_path(tmp_path):
    (tmp_path / "dump/step.1").mkdir(parents=True)
    names = {"logits": 1.0, "step.1/logits": 2.0}
    for name, value in names.items():
        np.save(tmp_path / "dump" / f"{name}.npy", np.array([value]))
    np.savez(tmp_path / "dump.npz", **{name: np.array([value]) for name, value in names.items()})
    for shapes, read in (open_folder(tmp_path / "dump"), open_npz(tmp_path / "dump.npz")):
        assert shapes == {name: (1,) for name in names}
        assert {name: read(name)[0] for name in shapes} == names


def test_compressed_archives_are_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((50, 50)))
    shapes, read = open_npz(tmp_path / "a.npz")
    assert shapes == {"x": (50, 50)}
    assert not read("x").any()


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


@pytest.mark.parametrize(
    ("data", "core"),
    [
        (b"", "does not begin as one"),
        (b"PK\x03\x04", "does not begin as one"),
        (with_header(GOOD, b"\0" * 8, b"\x09\x00"), "does not begin as one"),
        (with_header(GOOD, b"\0" * 8)[:20], "over the file or the limit"),
        (with_header(GOOD, b"\0" * 7), "7 bytes of data, but [2] of float32 takes 8"),
        (with_header(GOOD, b"\0" * 9), "9 bytes of data"),
        (with_header("{"), "not a dictionary"),
        (with_header("[]"), "not a dictionary"),
        (with_header("{}"), "not a dictionary"),
        (with_header("(" * 5000), "not a dictionary"),
        (with_header("__import__('os').system('true')"), "not a dictionary"),
        (with_header(GOOD.replace("(2,)", "(-2,)")), "shape="),
        (with_header(GOOD.replace("(2,)", "(True,)")), "shape="),
        (with_header(GOOD.replace("(2,)", "2")), "shape="),
        (with_header(GOOD.replace("(2,)", f"({10**30},)")), "shape="),
        (with_header(GOOD.replace("(2,)", "(0," + "1," * 80 + ")")), "shape="),
        (with_header(GOOD.replace("(2,)", "(9999999, 9999999)")), "takes 399999920000004"),
        (with_header(GOOD.replace("False", "0")), "shape="),
        (with_header(GOOD.replace("'<f4'", "'|O'")), "nothing is ever unpickled"),
        (with_header(GOOD.replace("'<f4'", "'<U4'")), "should be numbers"),
        (with_header(GOOD.replace("'<f4'", "'<V8'")), "should be numbers"),
        (with_header(GOOD.replace("'<f4'", "'<f3'")), "should be numbers"),
        (with_header(GOOD.replace("'<f4'", "'f4\x1b[31m'")), "should be numbers"),
        (with_header(GOOD.replace("'<f4'", "[('a', '<f4')]")), "should be numbers"),
    ],
)
def test_a_bad_array_is_refused_in_a_line(tmp_path, data, core):
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(InputError) as caught:
        _, read = open_folder(tmp_path)
        read("x")
    assert core in str(caught.value)
    assert str(caught.value).isprintable()


def test_no_prefix_and_no_changed_byte_of_an_archive_crashes(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, logits=np.linspace(0, 1, 64), other=np.arange(5))
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        spoilt = bytearray(whole)
        spoilt[place] ^= 0xFF
        for data in (whole[:place], bytes(spoilt)):
            path.write_bytes(data)
            try:
                shapes, read = open_npz(path)
                for name in shapes:
                    read(name)
            except InputError as error:
                assert str(error).isprintable()
                refused += 1
    assert refused > len(whole)


def test_an_archive_is_not_unpacked_without_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("lockstep.parity.dumps.npy.UNPACKED", 1000)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1000))
    with pytest.raises(InputError, match="over the limit of 1000"):
        open_npz(tmp_path / "a.npz")


def peak_of_opening(path):
    tracemalloc.start()
    open_npz(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_of_many_arrays_is_opened_one_array_at_a_time(tmp_path, save):
    """By law: the beginnings of 200 arrays are 200 times HEADER, and two are held at most."""
    for count in (8, 200):
        save(tmp_path / f"{count}.npz", **{f"x{one}": np.zeros(1 << 14) for one in range(count)})
    few, many = (peak_of_opening(tmp_path / f"{count}.npz") for count in (8, 200))
    assert many - few < 20 * HEADER


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_one_name_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for _ in range(2):
            archive.writestr("x.npy", saved(np.zeros(3)))
    with pytest.raises(InputError, match="two arrays of one name"):
        open_npz(tmp_path / "a.npz")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    os.mkfifo(tmp_path / "b.npy")
    for call in (lambda: open_npz(tmp_path / "a.npz"), lambda: open_folder(tmp_path)):
        with pytest.raises(InputError, match="not a regular file"):
            call()


def test_pickles_are_never_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(InputError, match="nothing is ever unpickled"):
        open_folder(tmp_path)
