from collections.abc import Iterator
from math import prod

import numpy as np

from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.ops.dequantize import dequantize
from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Array, Bias, Inputs, Outputs, Weight

TILE = 4096  # rows of the weight that are unpacked or widened at a time


def linear(x: Inputs, weight: Weight, bias: Bias | None) -> Outputs:
    """Multiply by a stored matrix, one row an output, and add a bias if there is one.

        out[n] = sum over k of x[k] * weight[n, k]  (+ bias[n])

    Rounding: a stored float weight is first rounded to `x.dtype` (exact if it is no finer), a
    packed one is unpacked in float32. Products and sums are in float32 (float64 for float64), in
    the order of the BLAS in use; one rounding to `x.dtype`, the bias added after it.
    Edges: K = 0 gives zeros (and the bias); NaN and infinity propagate.
    Varies by model: `bias` is None in Llama and Qwen3; GPT-2 stores the transpose, which the
    checkpoint reader undoes. The head of a tied model takes the embedding table as its weight.
    Memory: packed and narrower weights are widened `TILE` rows at a time, and weights that are
    still on the disk are read so.
    Raises: ValueError if the widths of `x` and `weight` differ.
    Source: `torch.nn.Linear`; Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
    """
    rows, columns = weight.shape
    if x.shape[-1] != columns:
        raise ValueError(f"linear: x has width {x.shape[-1]}, but the weight takes {columns}")
    flat = x.reshape(prod(x.shape[:-1]), columns).astype(accumulator(x.dtype), copy=False)
    out = np.empty((len(flat), rows), flat.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        for number, tile in enumerate(row_tiles(weight, x.dtype)):
            np.matmul(flat, tile.T, out=out[:, number * TILE : (number + 1) * TILE])
        out = rounded(out, x.dtype).reshape(*x.shape[:-1], rows)
        return out if bias is None else out + rounded(bias, x.dtype)


def row_tiles(weight: Weight, dtype: np.dtype) -> Iterator[Array]:
    """Yield the weight a tile of rows at a time, in the dtype that carries sums of `dtype`."""
    work = accumulator(dtype)
    for start in range(0, max(weight.shape[0], 1), TILE):
        rows = slice(start, start + TILE)
        if isinstance(weight, Packed):
            yield dequantize(weight, rows=rows, dtype=work)
        else:
            yield rounded(weight[rows], dtype).astype(work, copy=False)
