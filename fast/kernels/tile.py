"""Products of whole numbers: 32 rows of codes with some tokens' digits, in the registers.

Each of 16 lanes is a row. A step takes four columns: their codes, a byte each, come from memory
once for all tokens; a token's digits are the same in all lanes. What a step does is one instruction
of the processor for 64 products (AVX-512's VNNI).
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features

from lockstep.fast.kernels.lanes import (
    FLOAT,
    I8,
    I32,
    WIDTH,
    called,
    constant,
    instruction,
    spread,
    vector,
)
from lockstep.fast.kernels.memory import address

PAIR = 2  # vectors of rows
AROUND = 32  # the most that codes may lie around for `words.py`: then they are below 64
CELL = 4  # codes, or digits, of neighbouring columns, that a lane holds
I64 = ir.IntType(64)
BYTES = vector(I8, CELL * WIDTH)


def dotted(builder: Any, sums: Any, codes: Any, digits: Any) -> Any:
    """Add to each lane's sum the four products of codes, from 0 to 255, with digits."""
    taken = BYTES if llvm.llvm_version_info[0] >= 22 else vector(I32)  # as LLVM declares it
    kind = ir.FunctionType(vector(I32), [vector(I32), taken, taken])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
    given = [builder.bitcast(one, taken) for one in (codes, digits)]
    return builder.call(function, [sums, *given])


def dots(
    builder: Any, numbers: dict[str, int], codes: "Place", cells: "Place", sums: "Place"
) -> dict[tuple[int, int], list[Any]]:
    """Multiply codes with digits, sixteen columns a turn; return the sums over each digit."""
    span, each = numbers["span"], each_of(numbers)
    totals = {place: begun(builder, sums, place) for place in range(len(each))}
    with cgutils.for_range(builder, ir.Constant(I64, span // WIDTH)) as turn:
        some, others = codes.after(turn.index, PAIR * WIDTH * WIDTH), cells.after(turn.index, WIDTH)
        for column in range(0, WIDTH, CELL):
            both = [some.many(I32, column * PAIR + CELL * half) for half in range(PAIR)]
            for place, held in totals.items():
                four = others.one(I32, place * span + column)
                for code, total in zip(both, held, strict=True):
                    builder.store(dotted(builder, builder.load(total), code, four), total)
    return ended(builder, numbers, totals)


def each_of(numbers: dict[str, int]) -> list[tuple[int, int]]:
    """Return the tokens' digits in the order in which they lie: token, digit."""
    return [
        (token, digit) for token in range(numbers["tokens"]) for digit in range(numbers["digits"])
    ]


def begun(builder: Any, sums: "Place", place: int) -> list[Any]:
    """Make room for the sums over a token's digit, with what they begin with."""
    begin = sums.one(I32, place)
    return [cgutils.alloca_once_value(builder, begin) for _ in range(PAIR)]


def ended(
    builder: Any, numbers: dict[str, int], totals: dict[int, list[Any]]
) -> dict[tuple[int, int], list[Any]]:
    """Return a token's sums over each digit, of a half of the rows."""
    found = {(token, half): [] for token in range(numbers["tokens"]) for half in range(PAIR)}
    for place, (token, _) in enumerate(each_of(numbers)):
        for half, total in enumerate(totals[place]):
            found[token, half].append(builder.load(total))
    return found


@dataclass(frozen=True)
class Place:
    """An element of an array, from which others are read by how far behind it they lie."""

    context: Any
    builder: Any
    kind: Any
    array: Any
    start: Any

    def after(self, turns: Any, size: int) -> "Place":
        """Return the place that lies a number of turns, of a size each, behind this one."""
        more = self.builder.mul(turns, ir.Constant(I64, size))
        return replace(self, start=self.builder.add(self.start, more))

    def behind(self, elements: int) -> "Place":
        return self.after(ir.Constant(I64, elements), 1)

    def pointer(self, element: ir.Type, behind: int) -> Any:
        index = self.builder.add(self.start, ir.Constant(I64, behind))
        return address(self.context, self.builder, self.kind, element, self.array, index)

    def many(self, element: ir.Type, vectors: int) -> Any:
        """Read lanes that lie so many times sixteen elements of the array behind."""
        return self.builder.load(self.pointer(vector(element), vectors * WIDTH), align=4)

    def one(self, element: ir.Type, behind: int) -> Any:
        """Read one for all lanes."""
        return spread(self.builder, self.builder.load(self.pointer(element, behind), align=4))


def from_digits(builder: Any, sums: list[Any]) -> Any:
    """Put sums over the lowest digit, and those over higher ones, together as floats."""
    low, *high = sums
    number = builder.sitofp(low, vector(FLOAT))
    if not high:
        return number
    if len(high) == 2:
        high = [builder.add(high[0], builder.shl(high[1], constant([8] * WIDTH)))]
    more = ir.Constant(vector(FLOAT), [256.0] * WIDTH)
    return called(builder, "fma", builder.sitofp(high[0], vector(FLOAT)), more, number)


@instruction
def turned(_: Any, rows: Any, at: Any, apart: Any, panel: Any, to: Any) -> Any:
    """Turn sixteen columns of sixteen rows: lanes of four columns, a row each.

    The rows lie `apart` elements of their array from each other; of 32 rows' lanes these take every
    other sixteen.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, at, apart, panel, to = arguments
        four = ir.VectorType(I32, 4)
        each = []
        for row in range(WIDTH):
            start = builder.add(at, builder.mul(apart, ir.Constant(at.type, row)))
            place = address(context, builder, signature.args[0], four, rows, start)
            each.append(builder.load(place, align=1))
        # Vector j holds rows j, j + 4, j + 8, j + 12: so all that follows stays in its quarter.
        z = [beside(builder, [each[j + 4 * k] for k in range(4)]) for j in range(4)]
        low = [shuffled(builder, z[k], z[k + 1], (0, 16, 1, 17)) for k in (0, 2)]
        high = [shuffled(builder, z[k], z[k + 1], (2, 18, 3, 19)) for k in (0, 2)]
        columns = [
            shuffled(builder, pair[0], pair[1], part)
            for pair in (low, high)
            for part in ((0, 1, 16, 17), (2, 3, 18, 19))
        ]
        for index, lanes in enumerate(columns):
            more = ir.Constant(to.type, index * CELL * PAIR * WIDTH)
            start = builder.add(to, more)
            place = address(context, builder, signature.args[3], vector(I32), panel, start)
            builder.store(lanes, place, align=1)
        return context.get_dummy_value()

    return types.void(rows, types.intp, types.intp, panel, types.intp), generate


def beside(builder: Any, parts: list[Any]) -> Any:
    while len(parts) > 1:
        width = 2 * parts[0].type.count
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [builder.shuffle_vector(*pair, constant(list(range(width)))) for pair in pairs]
    return parts[0]


def shuffled(builder: Any, first: Any, second: Any, part: tuple[int, ...]) -> Any:
    """Take the same lanes out of each quarter of two vectors."""
    order = [4 * quarter + lane for quarter in range(4) for lane in part]
    return builder.shuffle_vector(first, second, constant(order))


@cache
def possible(zero: int) -> bool:
    """Whether the processor that is compiled for multiplies codes around `zero` so."""
    return adds_four() or (adds_two() and zero <= AROUND)


@cache
def adds_four() -> bool:
    """Whether an instruction adds four products up."""
    return has_feature("avx512vnni")


@cache
def adds_two() -> bool:
    """Whether one adds two up, in registers as wide as those of floats: see `words.py`.

    AVX-512 without VNNI has floats twice as wide, and was not measured.
    """
    return has_feature("avx2") and not has_feature("avx512f")


def has_feature(name: str) -> bool:
    """Whether the processor that is compiled for has what LLVM calls so."""
    settings: Any = config
    features = settings.CPU_FEATURES
    known = get_host_cpu_features() if features is None else features
    return f"+{name}" in known.split(",")
