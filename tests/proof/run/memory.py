"""How much memory a call took at its worst, as Linux counts it."""

import resource
import sys
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def megabytes(name: str) -> float:
    """Return a line of the process's status: `VmRSS` as it is, `VmHWM` at its worst."""
    if not STATUS.exists():  # macOS, which counts bytes and cannot forget its worst
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    lines = STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def forget_worst() -> float:
    """Start counting anew; return what is taken now."""
    if sys.platform == "linux":
        RESET.write_text("5", encoding="ascii")
    return megabytes("VmRSS")
