"""SiLU and GELU, alone or as the gate of another projection, in one pass."""

import math
from functools import cache

import numpy as np

from lockstep.fast.kernels.again import empty
from lockstep.fast.kernels.alike import alike
from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.exponential import exp
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import (
    WIDTH,
    added,
    divided,
    fma,
    magnitude,
    multiplied,
    splat,
    where_below,
)
from lockstep.fast.kernels.memory import floats, seen
from lockstep.fast.kernels.pairs import rounded_like, store_rounded
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.shapes import Hidden

COST = 4  # times that of a product, an exponential and a division
# Twice what `gelu_tanh` takes the tanh of: tanh is a sigmoid of twice its argument.
SLOPE = np.float32(2 * math.sqrt(2 / math.pi))
CUBIC = np.float32(2 * math.sqrt(2 / math.pi) * 0.044715)
LOWEST = np.finfo(np.float32).min


def activated(x: Hidden, up: Hidden | None, *, gelu: bool) -> Hidden | None:
    """Return silu(x) or gelu_tanh(x), times `up` of the same shape if there is one.

    None if they are not in whole lanes of float32 or of bfloat16, which is rounded before the
    product and after it.
    """
    given = alike(x, x if up is None else up)
    if given is None:
        return None
    out, rows = empty(x.shape, x.dtype), x.size // x.shape[-1]
    flat = (array.reshape(rows, -1) for array in (*given, seen(out)))
    activate(COST * x.size, rows, form(gelu, up is not None), *flat)
    return out


@cache
def form(gelu: bool, gated: bool) -> Constants:
    return Constants(format="gate", gelu=int(gelu), gated=int(gated))


@kernel
def activate(row, of, x, up, out):
    """Write what becomes of a row of x (M, F) and `up` to `out`, which is contiguous."""
    width = x.shape[1]
    start, other = row * x.strides[0] // x.itemsize, row * up.strides[0] // up.itemsize
    for index in range(0, width, WIDTH):
        lanes = activation(of, floats(x, start + index))
        if of.gated:
            lanes = multiplied(rounded_like(out, lanes), floats(up, other + index))
        store_rounded(out, row * width + index, lanes)


@inlined
def activation(of, x):
    """Multiply by a sigmoid; -inf is raised to the lowest number, since -inf * 0 would be NaN."""
    slope = x
    if of.gelu:
        slope = multiplied(x, fma(multiplied(x, x), splat(CUBIC), splat(SLOPE)))
    power = exp(multiplied(magnitude(slope), splat(np.float32(-1))))
    one = splat(np.float32(1))
    share = divided(where_below(slope, np.float32(0), power, one), added(power, one))
    return multiplied(share, where_below(x, LOWEST, splat(LOWEST), x))
