from collections.abc import Iterator
from math import prod

import numpy as np

from lockstep.fast import kernels
from lockstep.fast.cpu.dequantize import dequantize
from lockstep.fast.shapes import Array, Bias, Inputs, Outputs, Weight
from lockstep.reference.checkpoint.block_tensor import Packed

BLOCK = 1 << 20  # unpacked values at a time: 4 MB, within the cache of a core


def linear(x: Inputs, weight: Weight, bias: Bias | None) -> Outputs:
    """Multiply by a stored matrix, packed or not, and add a bias if there is one.

    Differs from `reference.ops.linear`: a row is unpacked in registers while it is multiplied, and
    its products are summed in sixteen lanes; without Numba, a block of rows is unpacked at a time.
    A float weight is not rounded to `x.dtype` first.
    """
    return multiplied(x, weight, bias, digits=None)


def multiplied(x: Inputs, weight: Weight, bias: Bias | None, *, digits: int | None) -> Outputs:
    """Do it with many activations in so many digits of a byte (None: as near as float32)."""
    rows, columns = weight.shape
    if x.shape[-1] != columns:
        raise ValueError(f"linear: x has width {x.shape[-1]}, but the weight takes {columns}")
    flat = x.reshape(prod(x.shape[:-1]), columns)
    out = by_pairs(flat, weight)
    if out is None:
        flat = flat.astype(np.float32, copy=False)
        out = by_kernel(flat, weight, digits)
    if out is not None and bias is None and x.dtype == out.dtype:
        return out.reshape(*x.shape[:-1], rows)
    with np.errstate(invalid="ignore", over="ignore"):
        out = by_blocks(flat, weight) if out is None else out
        out = out.astype(x.dtype, copy=False).reshape(*x.shape[:-1], rows)
        return out if bias is None else out + bias.astype(x.dtype, copy=False)


def by_pairs(x: Array, weight: Weight) -> Array | None:
    """Multiply bfloat16 by bfloat16, if Numba is installed and the processor has products of it."""
    if x.dtype == np.float32 or x.dtype.name != "bfloat16" or not kernels.available():
        return None  # in this order: a name is slow to ask for
    return kernels.module("by_pairs").product_of_pairs(x, weight)


def by_kernel(x: Array, weight: Weight, digits: int | None) -> Array | None:
    """Multiply in machine code, if Numba is installed and there is a kernel for the format."""
    if not kernels.available():
        return None
    product = kernels.module("product").product
    return product(x, weight) if digits is None else product(x, weight, digits=digits)


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
