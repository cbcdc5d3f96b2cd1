from collections.abc import Iterator
from math import prod

import numpy as np

from lockstep.fast import kernels
from lockstep.fast.cpu.dequantize import dequantize
from lockstep.fast.shapes import Array, Bias, Inputs, Outputs, Weight
from lockstep.reference.checkpoint.block_tensor import Packed

BLOCK = 1 << 20  # unpacked values at a time: 4 MB, within the cache of a core
FEW = 8  # tokens; for more, unpacking once costs less than reading codes for each


def linear(x: Inputs, weight: Weight, bias: Bias | None) -> Outputs:
    """Multiply by a stored matrix, packed or not, and add a bias if there is one.

    Differs from `reference.ops.linear`: for a few tokens, each row is multiplied as it is stored,
    and a group of codes is summed before it is scaled; for many, packed rows are unpacked a block at
    a time, straight into the product while they are in the cache. A float weight is not rounded to
    `x.dtype` first.
    """
    rows, columns = weight.shape
    if x.shape[-1] != columns:
        raise ValueError(f"linear: x has width {x.shape[-1]}, but the weight takes {columns}")
    flat = x.reshape(prod(x.shape[:-1]), columns).astype(np.float32, copy=False)
    out = by_rows(flat, weight) if len(flat) <= FEW else None
    with np.errstate(invalid="ignore", over="ignore"):
        out = by_blocks(flat, weight) if out is None else out
        out = out.astype(x.dtype, copy=False).reshape(*x.shape[:-1], rows)
        return out if bias is None else out + bias.astype(x.dtype, copy=False)


def by_rows(x: Array, weight: Weight) -> Array | None:
    """Multiply without unpacking, if there is a kernel for it."""
    if not kernels.available():
        return None
    from lockstep.fast.kernels.matvec import matvec

    return matvec(x, weight)


def by_blocks(x: Array, weight: Weight) -> Array:
    out = np.empty((len(x), weight.shape[0]), np.float32)
    for part, block in blocks(weight):
        np.matmul(x, block.T, out=out[:, part])
    return out


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
