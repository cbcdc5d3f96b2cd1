"""Which kernel's numbers a stored matrix has, and how its activations must lie."""

from functools import cache

import numpy as np

from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.formats import FORMATS, affine
from lockstep.fast.kernels.kernel import usable
from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.matmul import FOUR, ROWS, multiply
from lockstep.fast.kernels.memory import SEEN_AS, seen
from lockstep.fast.shapes import Array, Weight
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor

FLOATS = (np.dtype(np.float32), *SEEN_AS)


def product(x: Array, weight: Weight) -> Array | None:
    """Multiply float32 activations (M, K) by a matrix (N, K); None if no kernel is better.

    That is so for a form that none knows, and for a float32 matrix and few tokens: there is nothing
    to unpack, and BLAS is as quick.
    """
    plain = isinstance(weight, np.ndarray) and weight.dtype == np.float32 and len(x) < FOUR
    nothing = 0 in (*x.shape, weight.shape[0])
    form = None if plain or nothing or not usable() else stored(weight)
    if form is None:
        return None
    of, matrix = form
    out = np.empty((len(x), weight.shape[0]), np.float32)
    products, places = x.size * weight.shape[0], -(-weight.shape[0] // ROWS)
    sorted_x = interleaved(x, of.numbers.get("parts", 1))
    multiply(products, places, of, sorted_x, matrix, out)
    return out


def always_here(weight: Weight) -> bool:
    """Whether a kernel multiplies by a matrix however many tokens there are."""
    plain = isinstance(weight, np.ndarray) and weight.dtype == np.float32
    return not plain and stored(weight) is not None


def stored(weight: Weight) -> tuple[Constants, tuple[Array, ...]] | None:
    """Return the numbers of a matrix's format, and its arrays as kernels take them."""
    if isinstance(weight, QuantizedTensor):
        of = affine.layout(weight.bits, weight.group_size)
        octets = contiguous(weight.packed).view(np.uint8)
        return of, (octets, contiguous(weight.scales), contiguous(weight.biases))
    if isinstance(weight, BlockTensor):
        known = weight.format in FORMATS
        return (blocks(weight.format), (contiguous(weight.blocks),)) if known else None
    if not isinstance(weight, np.ndarray) or weight.dtype not in FLOATS or weight.shape[1] % WIDTH:
        return None
    return dense(weight.shape[1]), (contiguous(weight),)


@cache
def blocks(name: str) -> Constants:
    columns, size = BLOCKS[name]
    group = FORMATS[name].GROUP
    return Constants(format=name, group=group, size=size, step=size * group // columns)


@cache
def dense(columns: int) -> Constants:
    group = next(size for size in (4 * WIDTH, 2 * WIDTH, WIDTH) if columns % size == 0)
    return Constants(format="dense", group=group, step=group)


def interleaved(x: Array, parts: int) -> Array:
    """Sort columns as a format's vectors have them: by place within `parts` neighbours."""
    if parts == 1:
        return np.ascontiguousarray(x)
    runs = x.reshape(len(x), x.shape[1] // (WIDTH * parts), WIDTH, parts)
    return runs.swapaxes(2, 3).reshape(x.shape)


def contiguous(array: Array) -> Array:
    return seen(np.ascontiguousarray(array))
