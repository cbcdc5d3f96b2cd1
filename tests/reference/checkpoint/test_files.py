"""Opening and reading files. By hand: S37 and S38 of the ways in which a path can mislead."""

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.reference.checkpoint import files
from lockstep.reference.checkpoint.files import check_unchanged, open_file, read_bytes, read_whole
from lockstep.reference.checkpoint.files import stamp as stamp_of

Refuses = Callable[[Callable[[], object], str], str]


def read(path: Path) -> bytes:
    return read_whole(path, limit=100)


def test_reads_all_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(100)))
    assert read(tmp_path / "x") == bytes(range(100))


def test_small_reads_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 7)
    (tmp_path / "x").write_bytes(bytes(range(100)))
    assert read(tmp_path / "x") == bytes(range(100))


def test_what_is_no_regular_file(tmp_path: Path, refuses: Refuses) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/zero"), Path("/dev/null")):
        refuses(lambda path=path: read(path), "not a regular file")


def test_a_socket_is_no_regular_file(refuses: Refuses) -> None:
    # The path of a socket may have about 100 bytes, fewer than pytest's folders take.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        refuses(lambda: read(Path(folder) / "s"), "not a regular file")


def test_what_is_not_there(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    refuses(lambda: read(tmp_path / "missing"), "no such file")
    refuses(lambda: read(tmp_path / "dangling"), "no such file")
    refuses(lambda: read(tmp_path / "loop"), "cannot be opened")
    refuses(lambda: read(tmp_path / ("x" * 5000)), "cannot be opened")
    refuses(lambda: read(Path("a\0b")), "not a usable path")
    refuses(lambda: read(Path("\ud800")), "not a usable path")


def test_no_permission(tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    # Tests may run as root, for whom every file is open.
    (tmp_path / "x").write_bytes(b"x")
    monkeypatch.setattr(files.os, "open", denied)
    refuses(lambda: read(tmp_path / "x"), "cannot be opened: Permission denied")


@pytest.mark.parametrize("call", ["pread", "preadv"])
def test_a_failing_disk(
    call: str, tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    (tmp_path / "x").write_bytes(b"x")
    monkeypatch.setattr(files.os, "pread", lambda *_: b"")  # less than there is: it goes on
    monkeypatch.setattr(files.os, call, broken)
    refuses(lambda: read(tmp_path / "x"), "cannot be read: Input/output error")


def test_empty_and_too_large(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "x").write_bytes(b"")
    refuses(lambda: read(tmp_path / "x"), "file is empty")
    (tmp_path / "x").write_bytes(b"x" * 101)
    refuses(lambda: read(tmp_path / "x"), "file of 101 bytes is over the limit of 100")


def test_a_file_that_changes(tmp_path: Path, refuses: Refuses) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345678")
    with open_file(path) as descriptor:
        before = stamp_of(descriptor)
        check_unchanged(descriptor, path, before)
        path.write_bytes(b"1234")
        refuses(lambda: check_unchanged(descriptor, path, before), "8 bytes when it was opened, 4")
        refuses(lambda: read_bytes(descriptor, 2, 6, path), "file changed while reading")


def test_no_descriptor_is_left_open(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "x").write_bytes(b"x" * 101)
    first = os.dup(0)
    os.close(first)
    refuses(lambda: read(tmp_path / "x"), "over the limit")
    refuses(lambda: read(tmp_path), "not a regular file")
    after = os.dup(0)
    os.close(after)
    assert after == first
