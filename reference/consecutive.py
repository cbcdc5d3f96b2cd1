"""Numbers of rows that follow one another lie together, and are read or moved at once."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def runs(rows: Sequence[int] | np.ndarray) -> list[tuple[int, int]]:
    """Cut numbers into runs that rise by one: [4, 5, 2, 2] -> [(4, 6), (2, 3), (2, 3)]."""
    edges = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    return [(int(rows[a]), int(rows[b - 1]) + 1) for a, b in pairwise(edges) if b > a]
