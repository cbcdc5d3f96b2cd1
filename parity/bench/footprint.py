"""How much memory a process really has, and the most that it had: what the system would get back.

Not the resident set (pages of mapped files count there, which cost nobody anything), nor what
Python's tracemalloc sees (no buffer of MLX, no thread's stack), nor what an allocator has kept for
later. Linux: what of /proc/self/status is of no file, and VmHWM, which can be begun anew. macOS:
the physical footprint that Activity Monitor shows, by `proc_pid_rusage`; **not run yet**.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lockstep.parity.bench.memory import peak_bytes

RUSAGE_INFO_V4, UUID = 4, 16  # the flavour, and the bytes before its whole numbers of 64 bits
FOOTPRINT, LIFETIME_MAX, NUMBERS = 7, 28, 64  # places in `struct rusage_info_v4`; room to spare


@dataclass(frozen=True)
class Footprint:
    """Bytes: what the process has now, the most since `begin_anew`, and of it pages of files."""

    now: int
    peak: int
    files: int


def footprint() -> Footprint:
    """Return what this process has. Raises: OSError if the system does not tell."""
    if sys.platform == "darwin":
        found = of_macos()
        return Footprint(found[FOOTPRINT], found[LIFETIME_MAX], 0)
    status = fields(Path("/proc/self/status").read_text(encoding="ascii"))
    now = status["RssAnon"] + status["RssShmem"] + status.get("VmSwap", 0)
    return Footprint(now, peak_bytes(), status["RssFile"])


def begin_anew() -> bool:
    """Forget the peak so far, so that loading a model hides nothing; False where that cannot be."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def fields(status: str) -> dict[str, int]:
    """Return the figures of /proc/self/status that are in kB, in bytes."""
    found = {}
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[name] = 1024 * int(value[:-3])
    return found


def of_macos() -> list[int]:
    """Return the numbers of `struct rusage_info_v4` of this process."""
    library = ctypes.CDLL(None, use_errno=True)
    room = (ctypes.c_uint8 * (UUID + 8 * NUMBERS))()
    if library.proc_pid_rusage(os.getpid(), RUSAGE_INFO_V4, ctypes.byref(room)):
        raise OSError(ctypes.get_errno(), "proc_pid_rusage")
    return [*(ctypes.c_uint64 * NUMBERS).from_buffer(room, UUID)]
