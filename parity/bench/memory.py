"""How much memory a process has taken."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_bytes() -> int:
    """Return the most memory that this process has had at a time.

    Of the system's two figures Linux's VmHWM is this program's alone: `getrusage` also counts what
    the process was before, a copy of the one that started it.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        line = next(one for one in status.splitlines() if one.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
