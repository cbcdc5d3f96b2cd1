"""Rows of codes with a scale and an offset a group, as MLX packs them.

    y[n] = sum over groups g of  scale[n, g] * (codes of g . x of g) + offset[n, g] * (sum of x of g)

so that a group is scaled once, not code by code.
"""

import numpy as np
from numba import prange

from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.kernel import AHEAD, ROWS, inlined, kernel
from lockstep.fast.kernels.lanes import (
    WIDTH,
    codes_at,
    field,
    floats,
    fma,
    octets,
    prefetch,
    scalar,
    splat,
    to_floats,
    total,
)
from lockstep.fast.kernels.parts import dot_floats, group_sums, planes


def layout(bits: int, group: int) -> Constants:
    """Say how codes lie. If none straddles two bytes, those at one place of their bytes go together.

    `step` is the bytes of a group, `run` those of sixteen codes, and `parts` the codes of a byte.
    """
    step, run = group * bits // 8, WIDTH * bits // 8
    straddling = 8 % bits != 0 or step % WIDTH != 0
    values = {"bits": bits, "mask": 2**bits - 1, "group": group, "step": step, "run": run}
    parts = 1 if straddling else 8 // bits
    return Constants(**values, parts=parts, straddling=int(straddling))


@kernel
def multiply(of, x, packed, scales, offsets, y):
    """Write the products of x (M, K) with all rows to y (M, N)."""
    sorted_x, sums = planes(x, of.parts), group_sums(x, of.group)
    rows, groups = scales.shape
    for block in prange((rows + ROWS - 1) // ROWS):
        for row in range(block * ROWS, min(block * ROWS + ROWS, rows)):
            for token in range(len(x)):
                scaled = dot(of, packed, scales, row, groups, sorted_x, token)
                moved = dot_floats(offsets, row * groups, sums, token * groups, groups)
                y[token, row] = scaled + moved


@inlined
def dot(of, packed, scales, row, groups, x, token):
    """Multiply the scaled codes of a row by one row of activations that are sorted by `planes`."""
    lanes, stride = splat(np.float32(0)), of.group // of.parts
    for group in range(row * groups, (row + 1) * groups):
        start, at = group * of.step, token * groups * of.group + (group - row * groups) * stride
        prefetch(packed, start + AHEAD)
        if of.straddling:
            some = straddling(of, packed, start, x, at)
        else:
            some = aligned(of, packed, start, x, at, groups * of.step)
        lanes = fma(splat(scalar(scales, group)), some, lanes)
    return total(lanes)


@inlined
def aligned(of, packed, start, x, at, width):
    some = splat(np.float32(0))
    for octet in range(0, of.step, WIDTH):
        codes = octets(packed, start + octet)
        for part in range(of.parts):
            code = to_floats(field(codes, part * of.bits, of.mask))
            some = fma(code, floats(x, at + octet + part * width), some)
    return some


@inlined
def straddling(of, packed, start, x, at):
    some = splat(np.float32(0))
    for index in range(of.group // WIDTH):
        code = to_floats(codes_at(of, packed, start + index * of.run))
        some = fma(code, floats(x, at + index * WIDTH), some)
    return some
