"""The product of few activations with a stored matrix, straight from how it is stored."""

from math import prod

import numpy as np

from lockstep.fast.kernels import affine, blocks, dense
from lockstep.fast.kernels.formats import FORMATS
from lockstep.fast.kernels.kernel import usable
from lockstep.fast.kernels.lanes import seen
from lockstep.fast.shapes import Array, Weight
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor

FLOATS = ("float32", "float16", "bfloat16")


def matvec(x: Array, weight: Weight) -> Array | None:
    """Multiply float32 activations (M, K) by a matrix (N, K); None if no kernel knows its form.

    None too if a result is not finite: codes are summed before they are scaled, so that an
    infinite activation could meet a scale of the other sign.
    """
    out = np.empty((len(x), weight.shape[0]), np.float32)
    if not (usable() and prod(weight.shape) and written(np.ascontiguousarray(x), weight, out)):
        return None
    return out if np.isfinite(out).all() else None


def written(x: Array, weight: Weight, out: Array) -> bool:
    """Write the product to `out`; say whether there is a kernel for it."""
    if isinstance(weight, BlockTensor):
        known = weight.format in FORMATS
        if known:
            blocks.multiply(blocks.layout(weight.format), x, contiguous(weight.blocks), out)
        return known
    if isinstance(weight, QuantizedTensor):
        of = affine.layout(weight.bits, weight.group_size)
        parts = (contiguous(part) for part in (weight.scales, weight.biases))
        affine.multiply(of, x, contiguous(weight.packed).view(np.uint8), *parts, out)
        return True
    known = isinstance(weight, np.ndarray) and weight.dtype.name in FLOATS
    if known:
        dense.multiply(x, contiguous(weight), out)
    return known


def contiguous(array: Array) -> Array:
    return seen(np.ascontiguousarray(array))
