"""Rows of blocks as GGUF files have them: each block carries its own scales.

A format (`formats/`) adds one block's share of the product to the sums of a row: vectors for what
is multiplied by codes, and a number for what is constant in a group and so needs the sum of the
activations alone.
"""

from typing import Any

import numpy as np
from numba import prange
from numba.extending import overload

from lockstep.fast.kernels.constants import Constants, ConstantsType
from lockstep.fast.kernels.formats import FORMATS
from lockstep.fast.kernels.kernel import AHEAD, ROWS, inlined, kernel
from lockstep.fast.kernels.lanes import prefetch, splat, total
from lockstep.fast.kernels.parts import group_sums
from lockstep.reference.checkpoint.block_tensor import BLOCKS


def layout(name: str) -> Constants:
    weights, size = BLOCKS[name]
    return Constants(format=name, weights=weights, size=size, group=FORMATS[name].GROUP)


@kernel
def multiply(of, x, blocks, y):
    """Write the products of x (M, K) with all rows of blocks (N, bytes) to y (M, N)."""
    rows, sums = len(blocks), group_sums(x, of.group)
    for block in prange((rows + ROWS - 1) // ROWS):
        for row in range(block * ROWS, min(block * ROWS + ROWS, rows)):
            for token in range(len(x)):
                y[token, row] = dot(of, blocks, row, x, sums, token)


@inlined
def dot(of, blocks, row, x, sums, token):
    octets, columns = blocks.shape[1], x.shape[1]
    lanes, constant = splat(np.float32(0)), np.float32(0)
    for block in range(octets // of.size):
        start, at = row * octets + block * of.size, token * columns + block * of.weights
        prefetch(blocks, start + AHEAD)
        lanes, constant = share(of, blocks, start, x, at, sums, at // of.group, lanes, constant)
    return total(lanes) + constant


def share(*_: Any) -> Any:
    """Return `lanes` and `constant` with what the block that starts at byte `start` adds to them.

    `at` is its first activation in x, and `group` the place of its first sum in sums.
    """
    raise NotImplementedError


@overload(share, jit_options={"forceinline": True, "error_model": "numpy"})
def share_of(of, blocks, start, x, at, sums, group, lanes, constant):
    assert isinstance(of, ConstantsType)
    return FORMATS[of.values["format"]].share
