"""The product of many tokens with a matrix, both in bfloat16: float32 sums, rounded at the end.

Of 32 rows pairs of columns are put side by side once; then all tokens pass by.
"""

import ml_dtypes
import numpy as np

from lockstep.fast.kernels import by_tiles
from lockstep.fast.kernels.again import empty
from lockstep.fast.kernels.by_digits import on_a_line
from lockstep.fast.kernels.kernel import kernel, usable
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.pair_rows import fill, write
from lockstep.fast.kernels.pairs import (
    FOUR,
    MANY,
    UNROLLED,
    multiply_four,
    multiply_many,
    possible,
)
from lockstep.fast.shapes import Array, Weight

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def product_of_pairs(x: Array, weight: Weight) -> Array | None:
    """Multiply bfloat16 activations (M, K) by a matrix (N, K) of such; None if no kernel is better.

    That is so for a width that 16 does not divide, for fewer than four tokens, and on a processor
    that lacks the instruction.
    """
    plain = isinstance(weight, np.ndarray) and weight.dtype == x.dtype == BFLOAT16
    if not plain or len(x) < FOUR or 0 in weight.shape or x.shape[1] % (2 * UNROLLED):
        return None
    if not (possible() and usable()):
        return None
    out, octets = empty((len(x), len(weight)), BFLOAT16), halves(weight).view(np.uint8)
    if by_tiles.fits(x.shape[1]):
        by_tiles.product_of_halves(halves(x), octets, halves(out))
        return out
    blocks = -(-len(weight) // ROWS)
    multiply_pairs(x.size * len(weight), blocks, side_by_side(x), octets, halves(out))
    return out


def side_by_side(x: Array) -> Array:
    """Return cells of tokens (M, K), made up to fours, as they are multiplied: tile by tile, and in
    a tile those of all its tokens side by side. Rows apart would lie on the same few lines of the
    first cache. The shape is (M, K / 2), which says no more than how many there are.
    """
    more = -len(x) % FOUR
    whole = np.concatenate([x, np.zeros((more, x.shape[1]), x.dtype)]) if more else x
    cells = np.ascontiguousarray(whole).view(np.int32)
    laid, some = np.empty_like(cells), len(cells) // MANY * MANY
    for tokens, part in ((MANY, slice(some)), (FOUR, slice(some, None))):
        tiles = cells[part].reshape(-1, tokens, cells.shape[1])
        laid[part].reshape(-1, cells.shape[1], tokens)[:] = tiles.swapaxes(1, 2)
    return laid


def halves(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint16)


@kernel
def multiply_pairs(block, x, octets, y):
    """Write the products of tokens with a block of rows of a matrix to y (M, N).

    Their cells, (M, K / 2), lie `side_by_side`; M is made up to fours there, but not in y.
    """
    first, cells = block * ROWS, x.shape[1]
    panel = on_a_line(octets.shape[1] * ROWS)
    fill(octets, first, panel)
    out = on_a_line(MANY * ROWS * 4).view(np.float32)
    some = len(x) // MANY * MANY
    for start in range(0, some, MANY):
        multiply_many(x, start, cells, panel, out)
        write(y, start, min(MANY, len(y) - start), first, out)
    for start in range(some, len(x), FOUR):
        multiply_four(x, start, cells, panel, out)
        write(y, start, min(FOUR, len(y) - start), first, out)
