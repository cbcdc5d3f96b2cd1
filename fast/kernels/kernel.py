"""How a kernel is compiled, where its machine code is kept, and how it is started."""

import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import config, njit

AHEAD = 4096  # bytes: how far in front of itself a row asks for memory
ROWS = 32  # of the matrix that a core takes at a time
STARTING = threading.Lock()
_state = {"started": False, "forked": False}


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop that `prange` spreads over the cores.

    One kernel runs at a time: each takes all cores, and not every threading layer of Numba may be
    entered twice. Machine code is kept between processes under a name that is made of all sources
    here, since Numba itself would not see that a file changed which a kernel is composed of.
    """
    found = compiled(function, parallel=True, nogil=True)

    @functools.wraps(function)
    def start(*arguments: Any) -> Any:
        with STARTING:
            if not _state["started"]:
                return first(found, arguments)
            return found(*arguments)

    return start


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a part of a kernel: it becomes a piece of each kernel that calls it.

    So what is constant there, such as the bits of a code, is constant here, and loops unroll.
    """
    return njit(forceinline=True, error_model="numpy")(function)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    before = config.CACHE_DIR
    try:
        config.CACHE_DIR = str(cache_folder())
        return njit(cache=True, error_model="numpy", **options)(function)
    except RuntimeError:  # no folder can be written to
        return njit(error_model="numpy", **options)(function)
    finally:
        config.CACHE_DIR = before


@functools.cache
def cache_folder() -> Path:
    home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    root = Path(os.environ.get("XDG_CACHE_HOME") or home)
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    return root / "lockstep" / f"kernels-{digest.hexdigest()[:16]}"


def first(found: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Start the threads. GNU's wait in a loop, by default for so long that BLAS starves."""
    name, before = "GOMP_SPINCOUNT", os.environ.get("GOMP_SPINCOUNT")
    os.environ.setdefault(name, "1000")
    try:
        return found(*arguments)
    finally:
        _state["started"] = True
        if before is None:
            del os.environ[name]


def usable() -> bool:
    """Whether kernels may be started: not in a process that forked off one with threads."""
    return not _state["forked"]


def in_child() -> None:
    _state["forked"] = _state["started"]


os.register_at_fork(after_in_child=in_child)
