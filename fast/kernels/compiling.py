"""How machine code is made: by one of the processes that want it, and with no look for garbage."""

import fcntl
import gc
import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

LONGEST = 60  # seconds that a process waits for another, which may have been stopped
LOOKS = 0.01  # seconds between looks


def uncollected(dispatcher: Any) -> Any:
    """Look for no garbage while a kernel is compiled: a tenth of the time would go into that."""
    right = dispatcher.compile

    def make(signature: Any) -> Any:
        usual = gc.isenabled()
        gc.disable()
        try:
            return right(signature)
        finally:
            if usual:
                gc.enable()

    dispatcher.compile = make
    return dispatcher


def by_one(dispatcher: Any, folder: Path) -> Any:
    """Have each kernel compiled by one process: who wants the same meanwhile waits, and reads it.

    They write to the index one after another: else one would lose what the other entered.
    """
    right, right_keep = dispatcher.compile, dispatcher._cache.save_overload
    name = dispatcher.py_func.__name__

    def make(signature: Any) -> Any:
        kind = hashlib.sha256(str(signature).encode()).hexdigest()
        with alone(folder / f"{name}-{kind[:16]}.lock"):
            return right(signature)

    def keep(signature: Any, code: Any) -> None:
        with alone(folder / f"{name}.lock"):
            right_keep(signature, code)

    dispatcher.compile, dispatcher._cache.save_overload = make, keep
    return dispatcher


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until nobody else is at it, or for too long; who dies lets go.

    Where files cannot be locked nobody waits.
    """
    with ExitStack() as held:
        with suppress(OSError):
            file = held.enter_context(path.open("wb"))
            if locked(file):  # let go by hand: a process that was forked off has the file too
                held.callback(let_go, file)
        yield


def let_go(file: Any) -> None:
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)


def locked(file: Any) -> bool:
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(LOOKS)
    return False
