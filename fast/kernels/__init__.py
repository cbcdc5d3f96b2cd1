"""What `fast/cpu` runs in machine code, through Numba: the products with packed matrices.

A kernel here is a loop that reads like the formula: over the rows of a matrix, over the groups of a
row, sixteen numbers at a time (`lanes.py`). One storage format is one file. Without Numba nothing
here is imported, and `fast/cpu` computes the same with NumPy alone.
"""

from functools import cache
from importlib.util import find_spec


@cache
def available() -> bool:
    """Whether Numba is installed."""
    return find_spec("numba") is not None
