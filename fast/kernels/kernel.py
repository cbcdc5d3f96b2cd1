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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import config as numba_config
from numba import njit

SMALL = 1 << 18  # products that one core makes in the time that it takes to start the others
TORN = (OSError, EOFError, pickle.UnpicklingError)  # by half a file, or a disk that is full
UNUSED = 30 * 86400  # seconds after which the machine code of other sources is removed
SETTINGS: Any = numba_config  # which has its settings from the environment
STARTING = threading.Lock()
_state = {"threads": False, "forked": False}


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop that `prange` spreads over the cores: `start(products, *arguments)`.

    If there are few products, one core does it all. Else one kernel runs at a time: each takes all
    cores, and not every threading layer of Numba may be entered twice. Machine code that cannot be
    read or kept is thrown away and made anew, for this process alone.
    """
    alone, together = compiled(function), compiled(function, parallel=True)

    def attempt(products: int, *arguments: Any) -> Any:
        if products < SMALL:
            return alone(*arguments)
        with STARTING:
            return together(*arguments) if _state["threads"] else first(together, arguments)

    @functools.wraps(function)
    def start(products: int, *arguments: Any) -> Any:
        nonlocal alone, together
        try:
            return attempt(products, *arguments)
        except TORN:  # before the kernel ran: none raises these
            shutil.rmtree(own_folder(), ignore_errors=True)
            alone, together = unkept(function), unkept(function, parallel=True)
            return attempt(products, *arguments)

    return start


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a part of a kernel: it becomes a piece of each kernel that calls it.

    So what is constant there, such as the bits of a code, is constant here, and loops unroll.
    """
    return njit(forceinline=True, error_model="numpy")(function)


def compiled(function: Callable[..., Any], *, parallel: bool = False) -> Callable[..., Any]:
    """Compile for this processor when it is first called; machine code is kept between processes.

    It lies in a folder that is named after all sources here, since Numba itself would not see that
    a file changed which a kernel is composed of; nor does it tell one core's code from that of all.
    """
    folder = own_folder() / ("together" if parallel else "alone")
    if not writable(folder):  # then nowhere: Numba's own folders would mix these up
        return unkept(function, parallel=parallel)
    before = SETTINGS.CACHE_DIR
    try:
        SETTINGS.CACHE_DIR = str(folder)
        return njit(cache=True, **options(parallel))(function)
    finally:
        SETTINGS.CACHE_DIR = before


def unkept(function: Callable[..., Any], *, parallel: bool = False) -> Callable[..., Any]:
    """Compile for this processor and this process."""
    return njit(**options(parallel))(function)


def options(parallel: bool) -> dict[str, Any]:
    return {"parallel": parallel, "nogil": True, "error_model": "numpy"}


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


def first(found: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Start the threads. GNU's wait in a loop, by default for so long that BLAS starves."""
    name, before = "GOMP_SPINCOUNT", os.environ.get("GOMP_SPINCOUNT")
    os.environ.setdefault(name, "1000")
    try:
        return found(*arguments)
    finally:
        _state["threads"] = True
        if before is None:
            del os.environ[name]


def usable() -> bool:
    """Whether kernels may be started: not in a process that forked off one with threads."""
    return not _state["forked"]


def after_fork() -> None:
    """A child has none of the threads, and a lock that another thread held stays shut for ever."""
    _state["forked"] = _state["threads"] or STARTING.locked()


os.register_at_fork(after_in_child=after_fork)
