"""What `fast/cpu` runs in machine code, through Numba: products, and most of what is between them.

A kernel here is a loop that reads like the formula: over the rows of a matrix, over the groups of a
row, sixteen numbers at a time (`lanes.py`). One storage format is one file. Threads share the work
piece by piece (`sharing.py`). Without Numba nothing here is imported, and `fast/cpu` computes the
same with NumPy alone.
"""

import sys
from functools import cache
from importlib import import_module
from typing import Any


@cache
def available() -> bool:
    """Whether Numba is here and can be used: it refuses a NumPy that is newer than it knows."""
    try:
        from numba import config
    except ImportError:
        return False
    settings: Any = config  # which has its settings from the environment
    return not settings.DISABLE_JIT and sys.byteorder == "little"


@cache
def module(name: str) -> Any:
    """Return a module of this package, for operations that are called hundreds of times a token.

    An import statement in them would take as long as some of their kernels.
    """
    return import_module(f"lockstep.fast.kernels.{name}")
