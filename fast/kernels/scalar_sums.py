"""Sums of lanes times scalars: what a prompt's scores and its averages are both made of.

Lanes come from memory once for some sums, which stay in the registers. A processor begins a product
long before the one before is done: so it takes eight sums at least to keep AVX-512 busy, and half
of its registers hold sixteen. Registers half as wide hold those of four. How many are made together
changes no bit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from lockstep.fast.kernels.lanes import FLOAT, WIDTH, called, instruction, vector
from lockstep.fast.kernels.tile import I64, Place, has_feature

MANY = 16 if has_feature("avx512f") else 4


def summing(many: int, *, fresh: bool) -> Callable[..., Any]:
    """Make what writes so many sums: `fresh` ones, or on top of those that are there."""

    @instruction
    def put_sums(
        _: Any, lanes: Any, count: Any, scalars: Any, at: Any, along: Any, apart: Any,
        out: Any, to: Any,
    ) -> Any:  # fmt: skip
        """Write sums of `count` products, each sixteen neighbours of `out`, from a place on.

        The lanes of the products lie one behind another. Their scalars begin at a place, and lie
        `along` behind each other; those of the next sum lie `apart`. All are float32.
        """
        given = (lanes, types.intp, scalars, *[types.intp] * 3, out, types.intp)
        return types.void(*given), partial(of_sums, many, fresh)

    return put_sums


def of_sums(many: int, fresh: bool, context: Any, builder: Any, signature: Any, values: Any) -> Any:
    def place(index: int, at: Any) -> Place:
        return Place(context, builder, signature.args[index], values[index], at)

    _, count, _, at, along, apart, _, to = values
    lanes, first, out = place(0, ir.Constant(I64, 0)), place(2, at), place(6, to)
    scalars = [first.after(apart, index) for index in range(many)]
    none = ir.Constant(vector(FLOAT), [0.0] * WIDTH)
    begin = [none if fresh else out.many(FLOAT, index) for index in range(many)]
    for index, total in enumerate(summed(lanes, count, scalars, along, begin)):
        builder.store(total, out.pointer(vector(FLOAT), index * WIDTH), align=4)
    return context.get_dummy_value()


def summed(
    lanes: Place, count: Any, scalars: list[Place], along: Any, begin: list[Any]
) -> list[Any]:
    """Add lanes times scalars to what sums begin with, one product after another."""
    builder = lanes.builder
    sums = [cgutils.alloca_once_value(builder, some) for some in begin]
    with cgutils.for_range(builder, count) as turn:
        some, behind = lanes.after(turn.index, WIDTH).many(FLOAT, 0), builder.mul(turn.index, along)
        for scalar, own in zip(scalars, sums, strict=True):
            one = scalar.after(behind, 1).one(FLOAT, 0)
            builder.store(called(builder, "fma", some, one, builder.load(own)), own)
    return [builder.load(own) for own in sums]
