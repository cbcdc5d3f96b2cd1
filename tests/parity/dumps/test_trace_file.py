"""A trace is there whole or not at all, whatever happens while it is written. By law."""

import errno
import subprocess
import sys

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from lockstep.parity.dumps import trace_file
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.trace_file import TAGS, TraceFile
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.safetensors import SafetensorsFile


@pytest.mark.parametrize("name", sorted(TAGS))
def test_each_dtype_comes_back_as_it_was(tmp_path, name):
    values = np.array([[0, 1, 1]]).astype(np.dtype(name))
    with TraceFile(tmp_path / "t", tokens=[1]) as file:
        file("x", values)
    found = open_dump(tmp_path / "t").read("x")
    assert (found.dtype, found.shape) == (values.dtype, (1, 3))
    assert found.tobytes() == values.tobytes()


def test_arrays_of_any_kind_and_order_are_taken(tmp_path):
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    with TraceFile(tmp_path / "t") as file:
        file("turned", numbers.T)
        file("scalar", np.float32(2))
        file("empty", numbers[:0])
        file.prefix = "step.1/"
        file("mlx", mx.array(numbers).astype(mx.bfloat16))
        assert file.count == 4
    found = open_dump(tmp_path / "t")
    np.testing.assert_array_equal(found.read("turned"), numbers.T)
    assert found.shapes == {"turned": (3, 2), "scalar": (), "empty": (0, 3), "step.1/mlx": (2, 3)}
    assert found.read("step.1/mlx").dtype == ml_dtypes.bfloat16


class Boom(Exception):
    pass


def write_until(tmp_path, error):
    with TraceFile(tmp_path / "t") as file:
        file("x", np.ones(1000, np.float32))
        raise error


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt, SystemExit, MemoryError])
def test_after_an_error_what_was_there_is_there(tmp_path, error):
    (tmp_path / "t").write_bytes(b"old")
    with pytest.raises(error):
        write_until(tmp_path, error())
    assert (tmp_path / "t").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


FULL = """
import resource, sys
import numpy as np
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.reference.checkpoint.errors import InputError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    with TraceFile(sys.argv[1]) as file:
        for name in range(20):
            file(str(name), np.ones(1000, np.float32))
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [1, 3_000, 50_000, 80_500])
def test_a_full_disk_is_a_line_and_leaves_nothing(tmp_path, limit):
    command = [sys.executable, "-c", FULL, str(tmp_path / "t"), str(limit)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stderr == ""
    assert run.stdout == f"{tmp_path / 't'}: cannot be written: File too large\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["open", "replace"])
def test_every_failing_call_is_a_line(tmp_path, monkeypatch, call):
    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def write() -> None:
        monkeypatch.setattr(f"pathlib.Path.{call}", fail)
        with TraceFile(tmp_path / "t") as file:
            file("x", np.ones(3))

    with pytest.raises(InputError, match="cannot be written: Read-only file system"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["missing/t", "a\0b", "x" * 300])
def test_an_impossible_path_is_a_line(tmp_path, path):
    with pytest.raises(InputError, match="cannot be written"):
        TraceFile(f"{tmp_path}/{path}")


def test_a_header_that_nothing_would_read_is_told_before_the_file_is_made(tmp_path, monkeypatch):
    """By hand: in 2 KB beside what is said of the whole there is room for a few tensors."""
    monkeypatch.setattr(trace_file, "HEADER_LIMIT", trace_file.ABOUT + 2000)
    names = [f"model.layers.{layer}.mlp" for layer in range(40)]
    with pytest.raises(InputError, match="tensors would be over") as told:
        write(tmp_path / "long", names)
    assert "fewer taps (--taps) or fewer steps" in str(told.value)
    written = int(str(told.value).split("header of ")[1].split()[0]) - 1
    assert 10 < written < 40
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "fits", names[:written])
    limit = trace_file.ABOUT + 2000
    assert len(SafetensorsFile(tmp_path / "fits", header_limit=limit).entries) == written


def test_a_long_prompt_counts_as_header_too(tmp_path, monkeypatch):
    """By hand: 200,000 ids of 8 bytes are 1.6 MB, and of 3 MiB 1 MiB is kept: 0.5 MB are left."""
    limit, tokens = 3 << 20, [123456] * 200_000
    monkeypatch.setattr(trace_file, "HEADER_LIMIT", limit)
    names = [f"{layer:01000}" for layer in range(1500)]
    with pytest.raises(InputError, match="trace a shorter prompt, or fewer taps"):
        write(tmp_path / "long", names, tokens)
    write(tmp_path / "fits", names[:400], tokens)
    assert len(SafetensorsFile(tmp_path / "fits", header_limit=limit).entries) == 400


def write(path, names, tokens=(1,)):
    with TraceFile(path, tokens=[*tokens]) as file:
        for name in names:
            file(name, np.ones(3, np.float32))
