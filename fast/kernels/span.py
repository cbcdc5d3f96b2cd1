"""Products of a span of columns: 32 rows of codes with some tokens' digits, as floats at the end.

Whole numbers are summed by the processor's matrix unit, or in its registers (`tile.py`).
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types

from lockstep.fast.kernels.code_tiles import dots_of_unit
from lockstep.fast.kernels.lanes import FLOAT, WIDTH, called, instruction, vector
from lockstep.fast.kernels.tile import I64, PAIR, Place, dots, from_digits


@instruction
def add_products(
    _: Any, of: Any, panel: Any, code: Any, levels: Any, level: Any,
    cells: Any, cell: Any, sums: Any, first_sum: Any, steps: Any, step: Any, out: Any,
) -> Any:  # fmt: skip
    """Add the products of a span to `out`, 32 rows a token.

    After an array comes the place in it where the span begins. Codes and their levels are those of
    `by_digits.fill`; digits, what their sums begin with, and steps those of `digits.cut`.
    """
    given = (of, panel, types.intp, levels, types.intp, cells, types.intp, sums, types.intp)
    generate = partial(with_all_digits, of.numbers)
    return types.void(*given, steps, types.intp, out), generate


def with_all_digits(
    numbers: dict[str, int], context: Any, builder: Any, signature: Any, arguments: Any
) -> Any:
    """Generate the code of a span: its products in whole numbers, then floats of them."""
    arrays = [
        Place(context, builder, signature.args[index], arguments[index], arguments[index + 1])
        for index in (1, 3, 5, 7, 9)
    ]
    start = ir.Constant(I64, 0)
    out = Place(context, builder, signature.args[11], arguments[11], start)
    codes, levels, cells, sums, steps = arrays
    if numbers["unit"]:
        whole = dots_of_unit(builder, numbers, codes, cells)
    else:
        whole = dots(builder, numbers, codes, cells, sums)
    scales, rests = ([levels.many(FLOAT, PAIR * n + half) for half in range(PAIR)] for n in (0, 1))
    for token in range(numbers["tokens"]):
        step, all_of = steps.one(FLOAT, 2 * token), steps.one(FLOAT, 2 * token + 1)
        for half in range(PAIR):
            number = from_digits(builder, whole[token, half])
            index = token * PAIR + half
            some = builder.fmul(number, step)  # not the step by the scale: both may be tiny
            result = called(builder, "fma", some, scales[half], out.many(FLOAT, index))
            if numbers["rest"]:
                result = called(builder, "fma", rests[half], all_of, result)
            builder.store(result, out.pointer(vector(FLOAT), index * WIDTH), align=4)
    return context.get_dummy_value()
