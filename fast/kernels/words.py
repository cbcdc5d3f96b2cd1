"""Products of codes with digits where the processor adds two of them up, in a word of 16 bits.

That is AVX2's way. Codes are below 64, so no word overflows; as many more as surely fit are added
to it before its neighbour is, in 32 bits. So the sums are those of AVX-512's instruction.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from lockstep.fast.kernels.lanes import I16, I32, WIDTH, constant, vector
from lockstep.fast.kernels.tile import BYTES, CELL, I64, PAIR, Place, begun, beside, each_of, ended

WORD = 2**15 - 1
DIGIT = 2**7  # the most that one counts
TURN = 32  # columns that are multiplied without a loop
AT_ONCE = 2  # tokens' digits whose words with all rows stay in the registers


def dotted(builder: Any, sums: Any, codes: Any, digits: Any) -> Any:
    """Add to each lane's sum the four products of codes, below 64, with digits."""
    return builder.add(sums, weighed(builder, in_words(builder, codes, digits), 1))


def in_words(builder: Any, codes: Any, digits: Any) -> Any:
    """Return the sums of two neighbours' products."""
    parts = (halves(builder, builder.bitcast(one, BYTES)) for one in (codes, digits))
    return beside(
        builder, [two_by_two(builder, "ub.sw", I16, *part) for part in zip(*parts, strict=True)]
    )


def weighed(builder: Any, words: Any, factor: int) -> Any:
    """Return the sums of two neighbours, so many times, in 32 bits."""
    parts = halves(builder, words)
    factors = ir.Constant(parts[0].type, [factor] * WIDTH)
    return beside(builder, [two_by_two(builder, "wd", I32, part, factors) for part in parts])


def two_by_two(builder: Any, name: str, element: ir.Type, left: Any, right: Any) -> Any:
    """Multiply what fills a register, and add up neighbours, which are twice as wide then."""
    made = vector(element, left.type.count // 2)
    kind = ir.FunctionType(made, [left.type, right.type])
    name = f"llvm.x86.avx2.pmadd.{name}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [left, right])


def halves(builder: Any, value: Any) -> list[Any]:
    size = value.type.count // 2
    orders = (constant(list(range(begin, begin + size))) for begin in (0, size))
    return [builder.shuffle_vector(value, value, order) for order in orders]


def held(builder: Any, value: Any) -> Any:
    """Return the same: what is added next is added to it. LLVM would make many sums, to add those
    up, and has no registers for them.
    """
    parts = halves(builder, value)
    kind = ir.FunctionType(parts[0].type, [parts[0].type])
    return beside(builder, [builder.asm(kind, "", "=x,0", [part], False) for part in parts])


def dots(
    builder: Any, numbers: dict[str, int], codes: Place, cells: Place, sums: Place
) -> dict[tuple[int, int], list[Any]]:
    """Do what `tile.dots` does, with the digits of two tokens, or two of one, after others."""
    span, columns = numbers["span"], min(numbers["span"], TURN)
    totals = {}
    for first in range(0, len(each_of(numbers)), AT_ONCE):
        ours = range(first, first + AT_ONCE)
        totals |= {place: begun(builder, sums, place) for place in ours}
        with cgutils.for_range(builder, ir.Constant(I64, span // columns)) as turn:
            some = codes.after(turn.index, PAIR * WIDTH * columns)
            others = [cells.after(turn.index, columns).behind(place * span) for place in ours]
            for part in parts_of(columns, numbers["zero"]):
                for (place, half), words in words_of(builder, some, others, part).items():
                    total = totals[first + place][half]
                    more = weighed(builder, words, 1)
                    builder.store(builder.add(builder.load(total), more), total)
    return ended(builder, numbers, totals)


def parts_of(columns: int, zero: int) -> list[range]:
    """Cut columns into parts of which all products fit into a word: codes are below 2 * zero."""
    most = WORD // ((2 * zero - 1) * DIGIT * 2) * CELL
    return [range(begin, min(begin + most, columns), CELL) for begin in range(0, columns, most)]


def words_of(
    builder: Any, codes: Place, cells: list[Place], columns: range
) -> dict[tuple[int, int], Any]:
    """Return the sums of some columns' products: of digits by their place, and half of the rows."""
    words = {}
    for column in columns:
        digits = [one.one(I32, column) for one in cells]
        for half in range(PAIR):
            code = codes.many(I32, column * PAIR + CELL * half)
            for place, four in enumerate(digits):
                more, key = in_words(builder, code, four), (place, half)
                words[key] = held(builder, builder.add(words[key], more)) if key in words else more
    return words
