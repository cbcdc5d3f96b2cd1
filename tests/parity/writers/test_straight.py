"""What goes straight to the disk. By law: the file holds what was appended, byte for byte."""

import errno
import fcntl
import os

import numpy as np
import pytest

from lockstep.parity.dumps.trace_file import TraceFile, Unwritten
from lockstep.parity.writers import straight
from lockstep.parity.writers.in_place import InPlaceWriter
from lockstep.parity.writers.straight import BLOCK, Straight


@pytest.fixture(params=["direct", "ordinary", "refused"])
def small(request, monkeypatch):
    """Pieces of two blocks, on disks that take direct writes, know none, or refuse them."""
    monkeypatch.setattr(straight, "PIECE", 2 * BLOCK)
    if request.param == "ordinary":
        monkeypatch.setattr(straight, "DIRECT", 0)
    if request.param == "refused":
        monkeypatch.setattr(os, "pwrite", refusing(os.pwrite))


def refusing(write):
    """Return a `pwrite` of a disk that knows no direct writes, and says so late."""

    def refused(file, data, place):
        if fcntl.fcntl(file, fcntl.F_GETFL) & straight.DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(file, data, place)

    return refused


@pytest.mark.parametrize("before", [0, 7, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("sizes", [[], [0], [1], [2 * BLOCK], [3, 5 * BLOCK, 0, 11, 2 * BLOCK]])
def test_a_file_holds_what_was_appended(tmp_path, small, before, sizes):
    rng, path = np.random.default_rng(0), tmp_path / "file"
    wanted = rng.bytes(before)
    with path.open("xb") as file:
        file.write(wanted)
        rest = Straight(file)
        for size in sizes:
            data = bytearray(rng.bytes(size))
            wanted += data
            rest.write(memoryview(data))
            data[:] = bytes(size)  # whoever wrote may use the memory again
        assert rest.finish() is file
        file.write(b"behind")
    assert path.read_bytes() == wanted + b"behind"


def test_direct_writes_are_made_where_they_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr(straight, "PIECE", 2 * BLOCK)
    write, direct = os.pwrite, []

    def noted(file, data, place):
        direct.append(bool(fcntl.fcntl(file, fcntl.F_GETFL) & straight.DIRECT))
        return write(file, data, place)

    monkeypatch.setattr(os, "pwrite", noted)
    with (tmp_path / "file").open("xb") as file:
        file.write(b"7 bytes")
        rest = Straight(file)
        rest.write(memoryview(bytes(7 * BLOCK)))
        rest.finish()
    assert direct == [False, *[known(tmp_path)] * 2, False]


def known(folder):
    """Tell whether files of a folder can be opened for direct writes."""
    try:
        os.close(os.open(folder / "other", os.O_CREAT | os.O_WRONLY | straight.DIRECT))
    except OSError:
        return False
    return bool(straight.DIRECT)


def test_a_write_of_some_bytes_is_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(straight, "PIECE", 2 * BLOCK)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: write(file, data[:1000], place))
    data = np.random.default_rng(0).bytes(5 * BLOCK + 1)
    with (tmp_path / "file").open("xb") as file:
        rest = Straight(file)
        rest.write(memoryview(data))
        rest.finish()
    assert (tmp_path / "file").read_bytes() == data


def traced(path, cached, count=40):
    values = np.random.default_rng(0).standard_normal((count, 3, 101)).astype(np.float32)
    with TraceFile(path, 4096) as file:
        file.writer.cached = cached
        for number, value in enumerate(values):
            file(f"tap.{number}", value)
    return path.read_bytes()


@pytest.mark.parametrize("cached", [0, 1, 30_000])
def test_a_trace_is_the_same_file_either_way(tmp_path, small, monkeypatch, cached):
    used = []
    monkeypatch.setattr(Straight, "hand_over", counting(Straight.hand_over, used))
    assert traced(tmp_path / "straight", cached) == traced(tmp_path / "cached", None)
    assert len(used) > 2


def counting(call, used):
    return lambda self: (used.append(1), call(self))[1]


@pytest.mark.parametrize("count", [1, 40])  # the disk is full at the end, or on the way
def test_a_full_disk_ends_a_trace_with_one_line(tmp_path, small, monkeypatch, count):
    def full(file, data, place):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(Unwritten, match="straight: cannot be written: No space left on device"):
        traced(tmp_path / "straight", 0, count)
    assert not [*tmp_path.iterdir()]


def test_a_system_without_a_thread_to_give_ends_a_trace_with_one_line(tmp_path, small, monkeypatch):
    def none(self, *given):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(straight.ThreadPoolExecutor, "submit", none)
    with pytest.raises(Unwritten, match="straight: cannot be written: can't start new thread"):
        traced(tmp_path / "straight", 0, 1)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("count", [1, 5 * BLOCK])
def test_a_run_that_fails_leaves_nothing(tmp_path, small, count):
    with pytest.raises(KeyError), TraceFile(tmp_path / "port", 4096) as file:
        file.writer.cached = 0
        file("tap", np.zeros(count, np.float32))
        raise KeyError
    assert not [*tmp_path.iterdir()]


def test_what_was_given_up_may_be_given_up_again(tmp_path, small):
    writer = InPlaceWriter(tmp_path / "port", 4096, 0)
    writer.add("tap", bytes(3 * BLOCK), shape=(3 * BLOCK,), dtype="U8")
    writer.discard()
    writer.discard()
    assert not [*tmp_path.iterdir()]
