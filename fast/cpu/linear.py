from collections.abc import Iterator
from math import prod

import numpy as np

from lockstep.fast.cpu.dequantize import dequantize
from lockstep.fast.shapes import Array, Bias, Inputs, Outputs, Weight
from lockstep.reference.checkpoint.block_tensor import Packed

BLOCK = 1 << 20  # unpacked values at a time: 4 MB, within the cache of a core


def linear(x: Inputs, weight: Weight, bias: Bias | None) -> Outputs:
    """Multiply by a stored matrix, packed or not, and add a bias if there is one.

    Differs from `reference.ops.linear`: packed rows are unpacked a block at a time, straight into
    the product while they are in the cache; a float weight is not rounded to `x.dtype` first.
    """
    rows, columns = weight.shape
    if x.shape[-1] != columns:
        raise ValueError(f"linear: x has width {x.shape[-1]}, but the weight takes {columns}")
    flat = x.reshape(prod(x.shape[:-1]), columns).astype(np.float32, copy=False)
    out = np.empty((len(flat), rows), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for part, block in blocks(weight):
            np.matmul(flat, block.T, out=out[:, part])
        out = out.astype(x.dtype, copy=False).reshape(*x.shape[:-1], rows)
        return out if bias is None else out + bias.astype(x.dtype, copy=False)


def blocks(weight: Weight) -> Iterator[tuple[slice, Array]]:
    """Yield the weight in float32: whole if it is stored so, else by blocks of rows."""
    rows, columns = weight.shape
    if not isinstance(weight, Packed) and weight.dtype == np.float32:
        yield slice(0, rows), weight
        return
    step = max(BLOCK // max(columns, 1), 1)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        if isinstance(weight, Packed):
            yield part, dequantize(weight, rows=part, dtype=np.dtype(np.float32))
        else:
            yield part, weight[part].astype(np.float32)
