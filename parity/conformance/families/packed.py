"""Unpacking: every form of packed matrix, scales of zero, some of the rows."""

from collections.abc import Callable

import numpy as np

from lockstep.parity.conformance.case import Given
from lockstep.parity.conformance.draw import Draw, Family
from lockstep.parity.conformance.packing import BITS, GROUPS, affine, blocks, given, minifloat
from lockstep.parity.conformance.values import type_said
from lockstep.reference.checkpoint.block_tensor import BLOCKS
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS

ROWS = (1, 2, 3, 7, 8, 9, 33)


def affine_matrix(draw: Draw) -> Given:
    bits, group, seed = draw.one_of(BITS), draw.one_of(GROUPS), draw.whole(0, 99)
    columns = group * draw.one_of((1, 2, 4, 5))
    packed = affine(draw.one_of(ROWS), columns, bits, group, seed, draw.dtype)
    return given(packed, seed, draw.dtype)


def minifloat_matrix(draw: Draw) -> Given:
    seed, columns = draw.whole(0, 99), 32 * draw.one_of((1, 2, 4, 5, 16))
    packed = minifloat(draw.one_of(ROWS), columns, draw.one_of((*MINIFLOATS,)), seed)
    return given(packed, seed, draw.dtype)


def block_matrix(draw: Draw) -> Given:
    form, seed = draw.one_of((*BLOCKS,)), draw.whole(0, 99)
    columns = BLOCKS[form][0] * draw.one_of((1, 2, 3))
    return given(blocks(draw.one_of(ROWS), columns, form, seed), seed, draw.dtype)


def any_matrix(draw: Draw) -> Given:
    return draw.one_of((affine_matrix, minifloat_matrix, block_matrix))(draw)


def unpacked(matrix: Callable[[Draw], Given]) -> Callable[[Draw], dict[str, Given]]:
    """Return the arguments of an unpacking: all rows, or some by their numbers."""

    def arguments(draw: Draw) -> dict[str, Given]:
        weight = matrix(draw)
        rows: Given = Given(slice(None), "slice(None)")
        if draw.flag():
            last = weight.value.shape[0] - 1
            some = [draw.whole(0, last) for _ in range(draw.whole(1, 3))]
            rows = Given(np.array(some), f"np.array({some})")
        dtype = Given(draw.dtype, f"np.dtype({type_said(draw.dtype)})")
        return {"weight": weight, "rows": rows, "dtype": dtype}

    return arguments


PACKED: Family = {
    "dequantize": unpacked(any_matrix),
    "dequantize_affine": unpacked(affine_matrix),
    "dequantize_minifloat": unpacked(minifloat_matrix),
    "dequantize_blocks": unpacked(block_matrix),
}
