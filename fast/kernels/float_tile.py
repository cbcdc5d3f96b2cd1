"""Products of floats: four tokens with four rows, in the registers.

A product has sixteen sums. AVX-512 holds those of all sixteen products at once. Fewer or narrower
registers hold half the sums of two tokens: more would go to memory and back at every step. Which
are made at once changes no bit.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from lockstep.fast.kernels.lanes import (
    FLOAT,
    WIDTH,
    called,
    halves_added,
    instruction,
    vector,
)
from lockstep.fast.kernels.tile import I64, Place, beside, has_feature

FOUR = 4  # tokens, and rows, that a step takes once there are as many
# How many of the tokens, and of a product's sums, the registers are for at a time.
AT_ONCE = (FOUR, WIDTH) if has_feature("avx512f") else (FOUR // 2, WIDTH // 2)


@instruction
def put_sixteen(
    _: Any, tile: Any, apart: Any, x: Any, at: Any, far: Any, count: Any, out: Any
) -> Any:
    """Write the products of four tokens with four rows to `out` (4, 4), over `count` columns.

    Rows begin with the tile, and lie `apart`; tokens begin at a place of x, and lie `far` apart.
    All are float32.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tile, apart, x, at, far, count, out = arguments
        kinds, start = signature.args, ir.Constant(I64, 0)
        first = Place(context, builder, kinds[2], x, at)
        tokens = [first.after(far, token) for token in range(FOUR)]
        first = Place(context, builder, kinds[0], tile, start)
        rows = [first.after(apart, row) for row in range(FOUR)]
        products = Place(context, builder, kinds[6], out, start)
        for place, product in enumerate(products_of(tokens, rows, count)):
            builder.store(product, products.pointer(FLOAT, place))
        return context.get_dummy_value()

    return types.void(tile, types.intp, x, types.intp, types.intp, types.intp, out), generate


def products_of(tokens: list[Place], rows: list[Place], count: Any) -> list[Any]:
    """Return each token's products with all rows, one token after another."""
    some, lanes = AT_ONCE
    products = []
    for token in range(0, FOUR, some):
        ours = tokens[token : token + some]
        parts = [summed(ours, rows, count, begin, lanes) for begin in range(0, WIDTH, lanes)]
        products += [of_all_lanes(rows[0].builder, list(part)) for part in zip(*parts, strict=True)]
    return products


def of_all_lanes(builder: Any, parts: list[Any]) -> Any:
    """Add up a product's sums, as `lanes.total` does."""
    return halves_added(builder, beside(builder, parts), builder.fadd)


def summed(tokens: list[Place], rows: list[Place], count: Any, begin: int, lanes: int) -> list[Any]:
    """Return some of the sums of each token's products with each row: sixteen columns a turn."""
    builder, kind = rows[0].builder, vector(FLOAT, lanes)
    none = ir.Constant(kind, [0.0] * lanes)
    sums = [[cgutils.alloca_once_value(builder, none) for _ in rows] for _ in tokens]
    with cgutils.for_range(builder, builder.sdiv(count, ir.Constant(I64, WIDTH))) as turn:
        weights = [lanes_at(row.after(turn.index, WIDTH), kind, begin) for row in rows]
        for token, ours in zip(tokens, sums, strict=True):
            some = lanes_at(token.after(turn.index, WIDTH), kind, begin)
            for weight, own in zip(weights, ours, strict=True):
                builder.store(called(builder, "fma", some, weight, builder.load(own)), own)
    return [builder.load(own) for ours in sums for own in ours]


def lanes_at(place: Place, kind: ir.Type, behind: int) -> Any:
    return place.builder.load(place.pointer(kind, behind), align=4)
