"""Bytes that go to a file past the system's cache of pages, by a thread beside the run.

A page of that cache must be found and emptied before it is written, which can cost more than the
disk does, and a trace of a long prompt would push all else out of memory. So two pieces of memory
are filled and written in turn: a run waits only for a disk that is slower than itself.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import BinaryIO

import numpy as np

PIECE = 8 << 20  # bytes that are written at once
BLOCK = 4096  # a direct write begins and ends at a multiple of it, in memory and in the file
DIRECT = getattr(os, "O_DIRECT", 0)  # Linux has it


class Straight:
    """What is appended to a file that no one else writes to meanwhile.

    Where the system, or the file's disk, knows no direct writes, ordinary ones are made.
    Raises: OSError from any call, if what was handed over before cannot be written.
    """

    def __init__(self, file: BinaryIO):
        file.flush()
        self.file, self.place, self.filled = file, file.tell(), 0
        self.room = PIECE - self.place % BLOCK  # the first piece ends where direct writes may begin
        self.pieces = [mmap.mmap(-1, PIECE) for _ in range(2)]  # whole pages, as direct writes ask
        self.thread = ThreadPoolExecutor(1)
        self.pending: Future[None] | None = None

    def write(self, data: memoryview) -> None:
        """Append bytes; their memory may then be used for others."""
        left = np.frombuffer(data, np.uint8)
        while left.size:
            some, left = left[: self.room - self.filled], left[self.room - self.filled :]
            piece = np.frombuffer(self.pieces[0], np.uint8)
            piece[self.filled : self.filled + some.size] = some
            self.filled += some.size
            if self.filled == self.room:
                self.hand_over()

    def hand_over(self) -> None:
        """Let the thread write what the piece holds, when the one before is written."""
        self.wait()
        full = memoryview(self.pieces[0])[: self.filled]
        try:
            self.pending = self.thread.submit(put, self.file.fileno(), full, self.place)
        except RuntimeError as error:  # the system gives no thread
            raise OSError(errno.EAGAIN, str(error)) from None
        self.pieces.reverse()
        self.place, self.filled, self.room = self.place + self.filled, 0, PIECE

    def wait(self) -> None:
        """Return when all is written that was handed over."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def finish(self) -> BinaryIO:
        """Write what is left; return the file, which stands behind it for ordinary writes."""
        self.hand_over()
        self.wait()
        self.thread.shutdown()
        set_direct(self.file.fileno(), on=False)
        self.file.seek(self.place)
        return self.file

    def close(self) -> None:
        """Close the file, without what is left: whoever wants that has to `finish`."""
        self.thread.shutdown(cancel_futures=True)
        self.file.close()


def put(file: int, data: memoryview, place: int) -> None:
    """Write bytes at a place of a file, all of them."""
    while data:
        set_direct(file, on=place % BLOCK == 0 and len(data) % BLOCK == 0)
        try:
            done = os.pwrite(file, data, place)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            set_direct(file, on=False)  # a disk of larger blocks
            done = os.pwrite(file, data, place)
        data, place = data[done:], place + done


def set_direct(file: int, *, on: bool) -> None:
    """Have a file written past the cache, where that can be, or through it."""
    before = fcntl.fcntl(file, fcntl.F_GETFL)
    with suppress(OSError):  # a file system that knows no direct writes
        fcntl.fcntl(file, fcntl.F_SETFL, before | DIRECT if on else before & ~DIRECT)
