"""How a kernel is compiled, where its machine code is kept, and how it is started."""

import contextlib
import functools
import hashlib
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from lockstep.fast.kernels.compiling import by_one, uncollected
from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.helpers import SETTINGS, helpers
from lockstep.fast.kernels.sharing import BEFORE, BODIES, KEPT, play, run, serve

SMALL = 1 << 18  # products that one core makes in the time that it takes to start the others
TORN = (OSError, EOFError, pickle.UnpicklingError)  # by half a file, or a disk that is full
MANY = 1 << 30  # places: more than any kernel has
UNUSED = 30 * 86400  # seconds after which the machine code of other sources is removed
STARTING = threading.Lock()
NOTHING = (None,) * 8  # what `run` is given in place of arguments that a kernel does not have
OPTIONS = {"nogil": True, "error_model": "numpy"}
_state = {"forked": False}
_code: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Kept:
    """A kernel with its arguments: the numbers that `play` takes, and what must outlive them."""

    numbers: tuple[int, ...]
    alive: Any


def kernel(
    function: Callable[..., Any] | None = None, *, before: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Compile the work at one place: `start(products, places, *arguments)` does it at all of them.

    `start.kept` takes the same, and returns the kernel with them, for `played`.

    The function takes the place, then the arguments. What is to be done once, `before` it, takes
    the first of the arguments, as many as it has: it is compiled once for kernels that give it the
    same types. Where there are few products this thread does it all; else the others help,
    with one kernel at a time. Machine code that cannot be read or kept is thrown away and made
    anew, for this process alone.
    """
    if function is None:
        return functools.partial(kernel, before=before)
    work = Constants(format=function.__name__)
    BODIES[function.__name__] = function
    if before is not None:
        BEFORE[function.__name__] = before

    @functools.wraps(function)
    def start(products: int, places: int, *arguments: Any) -> None:
        readable(attempt, products, work, places, arguments)

    def keep(products: int, places: int, *arguments: Any) -> Kept:
        return readable(kept, products, work, places, arguments)

    vars(start)["kept"] = keep
    return start


def readable(do: Callable[..., Any], *given: Any) -> Any:
    """Do it, with machine code of this process alone where what was kept cannot be read."""
    if not _code:
        _code.update(run=compiled(run), serve=compiled(serve), play=compiled(play))
    try:
        return do(*given)
    except TORN:  # before the kernel ran: none raises these
        shutil.rmtree(own_folder(), ignore_errors=True)
        _code.update(run=unkept(run), serve=unkept(serve), play=unkept(play))
        return do(*given)


def attempt(products: int, work: Constants, places: int, arguments: tuple[Any, ...]) -> None:
    arguments += NOTHING[len(arguments) :]
    if products < SMALL:
        _code["run"](work, helpers.board, 1, places, *arguments)
        return
    with STARTING:
        pieces = helpers.pieces(places)
        if pieces > 1:
            helpers.call(served)
        _code["run"](work, helpers.board, pieces, places, *arguments)


def kept(products: int, work: Constants, places: int, arguments: tuple[Any, ...]) -> Kept:
    """Return what `play` needs to do a kernel's work over these arrays."""
    room, code = np.zeros(KEPT + 2, np.int64), _code["run"]
    code(work, room, 0, places, *arguments, *NOTHING[len(arguments) :])
    numbers = int(room[KEPT]), int(room[KEPT + 1]), room.ctypes.data
    return Kept((*numbers, int(products >= SMALL), places), (room, arguments, code))


def played(jobs: np.ndarray) -> None:
    """Do the work of kernels in their order: a row of int64 numbers for each."""
    with STARTING:
        most = helpers.pieces(MANY)
        if most > 1:
            helpers.call(served)
        readable(lambda: _code["play"](helpers.board, jobs, most))


def served(board: np.ndarray, wait: int) -> None:
    """Do what a helper does, by machine code that can be read."""
    try:
        _code["serve"](board, wait)
    except TORN:
        _code["serve"] = unkept(serve)
        _code["serve"](board, wait)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for this processor when it is first called; machine code is kept between processes.

    It lies in a folder that is named after all sources here, since Numba itself would not see that
    a file changed which a kernel is composed of.
    """
    folder = own_folder()
    if not writable(folder):  # then nowhere: Numba's own folder would mix these up
        return unkept(function)
    before = SETTINGS.CACHE_DIR
    try:
        SETTINGS.CACHE_DIR = str(folder)
        dispatcher = uncollected(njit(cache=True, **OPTIONS)(function))
        return by_one(named_apart(dispatcher), folder)
    finally:
        SETTINGS.CACHE_DIR = before


def named_apart(dispatcher: Any) -> Any:
    """Give the files of this process names that no other process gives to its own.

    Numba counts them. Two processes that compile at once would count alike, and the index of the
    one would lead to the machine code of the other: for other types, or for another kernel.
    """
    files = dispatcher._cache._cache_file
    files._data_name_pattern = f"{uuid.uuid4().hex}.{{number:d}}.nbc"
    return dispatcher


def unkept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for this processor and this process."""
    return uncollected(njit(**OPTIONS)(function))


@functools.cache
def writable(folder: Path) -> bool:
    """Make a folder, and see whether a file can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@functools.cache
def own_folder() -> Path:
    """Return the folder for what is compiled of these sources, and note that it is in use."""
    folder = cache_folder(Path(__file__).parent)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        remove_unused(folder)
    return folder


def remove_unused(folder: Path) -> None:
    """Remove what other versions of the sources left beside a folder, once no process starts it."""
    for other in folder.parent.glob("kernels-*"):
        with contextlib.suppress(OSError):  # another process removed it first
            if other != folder and time.time() - other.stat().st_mtime > UNUSED:
                shutil.rmtree(other, ignore_errors=True)


def cache_folder(source: Path) -> Path:
    """Return the folder of the user's cache for what is compiled of the files in another."""
    own = os.environ.get("XDG_CACHE_HOME")
    usual = "Library/Caches" if sys.platform == "darwin" else ".cache"
    root = Path(own) if own else Path("~").expanduser() / usual
    sources = sorted(source.rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    return root / "lockstep" / f"kernels-{digest.hexdigest()[:16]}"


def usable() -> bool:
    """Whether kernels may be started: not in a process forked off while another thread did so."""
    return not _state["forked"]


def after_fork() -> None:
    """A lock that another thread held stays shut for ever, and so may those of the compiler."""
    _state["forked"] = STARTING.locked()


os.register_at_fork(after_in_child=after_fork)
