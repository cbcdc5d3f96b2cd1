from collections.abc import Iterator

import numpy as np

from lockstep.reference.ops.linear import TILE, row_tiles
from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Array, Bias, LoraDown, LoraUp, Magnitude, Outputs, Weight


def dora_rescale(
    y: Outputs, weight: Weight, bias: Bias | None, a: LoraDown, b: LoraUp, magnitude: Magnitude,
    *, scale: float,
) -> Outputs:  # fmt: skip
    """Give each row of an adapted weight its learned length, and add the bias.

        out[n] = y[n] * magnitude[n] / |weight[n] + scale * (b @ a)[n]|  (+ bias[n])

    `y` is the output of the adapted projection without its bias: `linear`, then `add_lora`.
    Rounding: a stored float weight is first rounded to `y.dtype`, a packed one is unpacked in
    float32. Lengths and the quotient are in float32 (float64 for float64), rounded once to
    `y.dtype`; then the product, and the sum with the bias, once each.
    Edges: a row of length 0 gives NaN or infinity; NaN propagates.
    Varies by model: nothing; PEFT writes the same as an addition to the base's output.
    Memory: one tile of rows of the adapted weight.
    Source: Liu et al. 2024, arXiv:2402.09353, eq. 5.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        lengths = np.concatenate(list(row_lengths(weight, a, b, scale, y.dtype)))
        gain = magnitude.astype(lengths.dtype, copy=False) / lengths
        out = y * rounded(gain, y.dtype)
        return out if bias is None else out + rounded(bias, y.dtype)


def row_lengths(
    weight: Weight, a: LoraDown, b: LoraUp, scale: float, dtype: np.dtype
) -> Iterator[Array]:
    """Yield the length of each row of the adapted weight, a tile of rows at a time."""
    work = accumulator(dtype)
    for number, tile in enumerate(row_tiles(weight, dtype)):
        some = b[number * TILE : (number + 1) * TILE].astype(work, copy=False)
        moved = tile + work.type(scale) * (some @ a.astype(work, copy=False))
        yield np.sqrt(np.square(moved).sum(axis=1))
