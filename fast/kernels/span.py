"""Products of a span of columns: 32 rows of codes with some tokens' digits, as floats at the end.

Whole numbers are summed by the processor's matrix unit, or in its registers (`tile.py`).
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from lockstep.fast.kernels import tile, words
from lockstep.fast.kernels.lanes import FLOAT, I32, WIDTH, called, instruction, vector
from lockstep.fast.kernels.tile import I64, PAIR, Place, adds_two, from_digits

dots = words.dots if adds_two() else tile.dots
Whole = Callable[[int, int], list[Any]]  # a token's sums over each digit, of a half of the rows


@instruction
def add_products(
    _: Any, of: Any, panel: Any, code: Any, levels: Any, level: Any,
    cells: Any, cell: Any, sums: Any, first_sum: Any, steps: Any, step: Any, out: Any,
) -> Any:  # fmt: skip
    """Add the products of a span to `out`, 32 rows a token.

    After an array comes the place in it where the span begins. Codes and their levels are those of
    `by_digits.fill`; digits, what their sums begin with, and steps those of `digits.cut`.
    """
    numbers = of.numbers

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, levels, cells, sums, steps = places(context, builder, signature, arguments, 5)
        whole = dots(builder, numbers, codes, cells, sums)
        start = ir.Constant(I64, 0)
        out = Place(context, builder, signature.args[11], arguments[11], start)
        add(builder, numbers, lambda *key: whole[key], levels, steps, out)
        return context.get_dummy_value()

    given = (of, panel, types.intp, levels, types.intp, cells, types.intp, sums, types.intp)
    return types.void(*given, steps, types.intp, out), generate


@instruction
def add_sums(
    _: Any, of: Any, sums: Any, first: Any, levels: Any, level: Any,
    steps: Any, step: Any, out: Any, token: Any,
) -> Any:  # fmt: skip
    """Add to `out` the products whose sums over each digit the matrix unit wrote."""
    numbers = of.numbers

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, levels, steps, out = places(context, builder, signature, arguments, 4)

        def whole(token: int, half: int) -> list[Any]:
            rows = range(token * numbers["digits"], (token + 1) * numbers["digits"])
            return [sums.many(I32, row * PAIR + half) for row in rows]

        add(builder, numbers, whole, levels, steps, out)
        return context.get_dummy_value()

    given = (of, sums, types.intp, levels, types.intp, steps, types.intp, out, types.intp)
    return types.void(*given), generate


def places(context: Any, builder: Any, signature: Any, arguments: Any, count: int) -> list[Place]:
    """Return places in so many arrays, each of which an index follows."""
    return [
        Place(context, builder, signature.args[index], arguments[index], arguments[index + 1])
        for index in range(1, 2 * count, 2)
    ]


def add(
    builder: Any, numbers: dict[str, int], whole: Whole, levels: Place, steps: Place, out: Place
) -> None:
    """Generate the floats of a span's whole numbers, and their sums with what `out` holds."""
    scales, rests = ([levels.many(FLOAT, PAIR * n + half) for half in range(PAIR)] for n in (0, 1))
    for token in range(numbers["tokens"]):
        step, all_of = steps.one(FLOAT, 2 * token), steps.one(FLOAT, 2 * token + 1)
        for half in range(PAIR):
            number = from_digits(builder, whole(token, half))
            index = token * PAIR + half
            some = builder.fmul(number, step)  # not the step by the scale: both may be tiny
            result = called(builder, "fma", some, scales[half], out.many(FLOAT, index))
            if numbers["rest"]:
                result = called(builder, "fma", rests[half], all_of, result)
            builder.store(result, out.pointer(vector(FLOAT), index * WIDTH), align=4)
