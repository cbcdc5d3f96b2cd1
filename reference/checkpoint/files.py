"""Opening and reading files that nobody vouches for.

Only regular files are opened, without waiting on a FIFO. Bytes come by `pread`, never by a memory
map: a mapped file that shrinks kills Python, a short read is an error that can be told.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
# One read call moves at most 2 GiB on Linux and less than that on macOS.
CHUNK = 1 << 30


@dataclass(frozen=True)
class FileStamp:
    """What tells that a path still leads to the very same unchanged file."""

    device: int
    inode: int
    size: int
    mtime_ns: int


@contextmanager
def open_file(path: Path) -> Iterator[int]:
    """Open a regular file for reading and yield its descriptor.

    Raises InputError if there is no such file, it may not be read, or it is a folder, a FIFO, a
    socket or a device.
    """
    descriptor = _open(path)
    try:
        _check_regular(os.fstat(descriptor), path)
        yield descriptor
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from None
    finally:
        os.close(descriptor)


def stamp(descriptor: int) -> FileStamp:
    """Return the identity, size and time of change of an open file."""
    status = os.fstat(descriptor)
    return FileStamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def check_unchanged(descriptor: int, path: Path, expected: FileStamp) -> None:
    """Raise InputError unless the open file is still the one that was validated."""
    now = stamp(descriptor)
    if now != expected:
        was = f"{expected.size} bytes when it was opened, {now.size} now"
        raise InputError(path, "file changed while reading", was)


def read_into(descriptor: int, buffer: memoryview, offset: int, path: Path) -> None:
    """Fill a writable buffer of bytes from a place in an open file, or raise InputError."""
    done = 0
    while done < len(buffer):
        got = os.preadv(descriptor, [buffer[done : done + CHUNK]], offset + done)
        if got == 0:
            where = f"wanted {len(buffer)} bytes at byte {offset}, got {done}"
            raise InputError(path, "file changed while reading: it ends early", where)
        done += got


def read_bytes(descriptor: int, offset: int, length: int, path: Path) -> bytes:
    """Return exactly `length` bytes from a place in an open file, or raise InputError."""
    data = os.pread(descriptor, length, offset) if length <= CHUNK else b""
    if len(data) == length:  # as nearly always, without a copy
        return data
    buffer = bytearray(length)
    read_into(descriptor, memoryview(buffer), offset, path)
    return bytes(buffer)


def read_whole(path: Path, *, limit: int) -> bytes:
    """Return all bytes of a regular file that is not empty and not over `limit` bytes."""
    with open_file(path) as descriptor:
        before = stamp(descriptor)
        if before.size == 0:
            raise InputError(path, "file is empty")
        if before.size > limit:
            raise InputError(path, f"file of {before.size} bytes is over the limit of {limit}")
        data = read_bytes(descriptor, 0, before.size, path)
        check_unchanged(descriptor, path, before)
    return data


def _open(path: Path) -> int:
    try:
        # Asked before opening, because opening a device can already do something.
        _check_regular(path.stat(), path)
        return os.open(path, FLAGS)
    except FileNotFoundError:
        raise InputError(path, "no such file") from None
    except OSError as error:
        raise InputError(path, f"cannot be opened: {error.strerror or error}") from None
    except InputError:
        raise
    except ValueError as error:
        # A NUL byte or a lone surrogate in a path is no OSError.
        raise InputError(path, f"not a usable path: {error}") from None


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InputError(path, "not a regular file")
