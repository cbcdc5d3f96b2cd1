"""The threads that help with kernels: they look for work in a loop, for a while, then sleep."""

import atexit
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import config as numba_config

from lockstep.fast.kernels.sharing import board

WAIT = 500_000  # nanoseconds in which a thread looks for more work: it comes sooner within a token
PIECES = 8  # that a job is cut into, for each thread
SETTINGS: Any = numba_config  # which has its settings from the environment

Serve = Callable[[np.ndarray, int], None]


class Helpers:
    """All threads but the one that posts a job. They are started when there is a first one."""

    def __init__(self) -> None:
        self.board, self.asleep = board(), list[threading.Lock]()
        self.threads: list[threading.Thread] = []
        self.leaving, self.calls = False, 0

    def pieces(self, places: int) -> int:
        """Return how many pieces a job of so many places is cut into."""
        count = SETTINGS.NUMBA_NUM_THREADS
        return 1 if count == 1 else max(min(places, PIECES * count), 1)

    def call(self, serve: Serve) -> None:
        """Have the threads look for work, as there will be some at once. One thread calls."""
        self.calls += 1
        if not self.threads:
            self.start(serve)
        self.ring()

    def ring(self) -> None:
        """Wake all that sleep. One of them may take the last bell back at any moment."""
        with contextlib.suppress(IndexError):
            while True:
                self.asleep.pop().release()

    def start(self, serve: Serve) -> None:
        for _ in range(SETTINGS.NUMBA_NUM_THREADS - 1):
            thread = threading.Thread(target=self.help, args=(serve,), daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread may be started any more
                thread.start()
                self.threads.append(thread)

    def help(self, serve: Serve) -> None:
        """Help while there is work. A thread that comes too late for a job is not missed.

        Who was called since it last began to look, looks again: there was no bell to ring yet.
        """
        bell = threading.Lock()
        bell.acquire()
        while not self.leaving:
            calls = self.calls
            serve(self.board, WAIT)
            self.asleep.append(bell)
            if self.leaving or (self.calls != calls and self.taken_back(bell)):
                continue
            bell.acquire()

    def taken_back(self, bell: threading.Lock) -> bool:
        """Take a bell back that nobody rings; False if somebody does."""
        with contextlib.suppress(ValueError):
            self.asleep.remove(bell)
            return True
        return False

    def leave(self) -> None:
        """Send the threads home: machine code must not run on while Python is taken down."""
        self.leaving = True
        while any(thread.is_alive() for thread in self.threads):
            self.ring()
            self.threads[0].join(0.001)
            self.threads = [thread for thread in self.threads if thread.is_alive()]


helpers = Helpers()


def after_fork() -> None:
    """A child has none of the threads, and a job that one of them was at is never done."""
    helpers.__init__()


atexit.register(lambda: helpers.leave())
os.register_at_fork(after_in_child=after_fork)
