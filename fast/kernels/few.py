"""The product of one to three tokens with codes, in whole numbers.

A row is read once. Of 64 codes each is multiplied by the three digits of its activation; products
are summed in sixteen lanes, a lane of codes with one scale, and a sum becomes a float only then.
Tokens that have no digits, and rows of which a scale is not finite, are left to floats.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.digits import EXACT, LIMIT, step_of
from lockstep.fast.kernels.kernel import inlined, kernel
from lockstep.fast.kernels.lanes import (
    WIDTH,
    added,
    field,
    fma,
    in_bytes,
    ints_added,
    multiplied,
    no_ints,
    rint,
    splat,
    to_ints,
    total,
)
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.memory import LINE, floats, prefetch, store, store_octets
from lockstep.fast.kernels.octets import (
    MANY,
    ints,
    many_octets,
    products_added,
    put_together,
    same_octets,
    store_ints,
    times,
)
from lockstep.fast.kernels.tile import possible
from lockstep.fast.kernels.weights import lane_levels, many_codes

CHUNKS = MANY // WIDTH
# What goes with the codes of one set of levels: the numbers that sums over the lowest digit begin
# with, and those over the others; steps; and the sums of activations. Of each sixteen lanes.
LOW, HIGH, STEPS, SUMS, NUMBERS = 0, WIDTH, 2 * WIDTH, 3 * WIDTH, 4 * WIDTH


def fits(of: Constants, columns: int) -> bool:
    """Whether the codes of a format lie so that 64 at once can be read, and multiplied."""
    stretch = of.numbers.get("stretch")
    return stretch is not None and columns % stretch == 0 and possible()


@dataclass(frozen=True)
class Few:
    """What all products of few tokens with a format have alike.

    `of` are its numbers with how far the codes of its sets of levels lie `apart`; `order` are those
    that say how activations lie; a token's digits and what goes with them take so many `octets`.
    """

    of: Constants
    order: Constants
    zero: int
    octets: int


@cache
def few_of(of: Constants, columns: int) -> Few:
    numbers = of.numbers
    apart = MANY * numbers["shared"] * numbers["step"] // numbers["group"]
    three = Constants(format=of.format, **({"apart": apart, "turn": 1} | numbers))
    _, octets = octets_of(numbers["shared"], columns)
    return Few(three, order_of(of), numbers["zero"], octets)


@cache
def order_of(of: Constants) -> Constants:
    """Return how activations lie that go with a format: what many formats share."""
    names = ("span", "near", "vectors", "shared")
    return Constants(format="three digits", **{name: of.numbers[name] for name in names})


def octets_of(shared, columns):
    """Return how many octets a token's numbers take, and how many all that it has."""
    numbers = 4 * NUMBERS * (columns // (MANY * shared))
    return numbers, EXACT * columns + numbers + LINE


inlined_octets_of = inlined(octets_of)


@inlined
def parts_of(of, room, token, columns):
    """Return where a token's digits begin, its numbers, whole and not, and where its mark is.

    The mark says whether the token has digits. All begins where a line of the cache does.
    """
    numbers, octets = inlined_octets_of(of.shared, columns)
    begin = -room.ctypes.data % LINE + token * octets
    behind = begin + EXACT * columns
    whole = room[behind : behind + numbers].view(np.int32)
    return begin, whole, whole.view(np.float32), behind + numbers


def cut_few(of, zero, room, x):
    """Write the digits of all tokens of x (M, K), once for all rows.

    As yet nothing is to be done again.
    """
    room[-1] = 0
    for token in range(len(x)):
        cut_token(of, zero, room, x, token)


@inlined
def cut_token(of, zero, room, x, token):
    columns = x.shape[1]
    begin, whole, number, mark = parts_of(of, room, token, columns)
    room[mark] = 0
    for span in range(columns // of.span):
        at = token * columns + span * of.span
        step, fit = step_of(of.span, LIMIT, x, at)
        if not fit:
            return
        for more in range(of.span // WIDTH):
            vector, chunk = place_of(of, span * (of.span // WIDTH) + more)
            to = begin + vector * EXACT * MANY + chunk * WIDTH
            cut_chunk(floats(x, at + more * WIDTH), step, room, to)
            lane = vector // of.shared * NUMBERS + STEPS + chunk * CHUNKS
            number[lane : lane + CHUNKS] = step
    for one in range(columns // (MANY * of.shared)):
        sum_up(of, zero, room, begin, whole, number, one)
    room[mark] = 1


@inlined
def place_of(of, index):
    """Return to which 64 codes sixteen columns belong, and to which chunk of sixteen of them."""
    runs, within = index // (of.near * of.vectors), index % (of.near * of.vectors)
    vector = runs * of.near // CHUNKS * of.vectors + within // of.near
    return vector, runs * of.near % CHUNKS + within % of.near


@inlined
def cut_chunk(some, step, room, to):
    """Write the digits of sixteen numbers."""
    octets = in_bytes(to_ints(rint(multiplied(some, splat(np.float32(1) / step)))))
    for digit in range(EXACT):
        store_octets(room, to + digit * MANY, field(octets, 8 * digit, 255))


@inlined
def sum_up(of, zero, room, begin, whole, number, one):
    """Write the sums of activations lane by lane, and what stands for codes that are `zero`."""
    low = middle = high = no_ints()
    for vector in range(of.shared):
        at = begin + (one * of.shared + vector) * EXACT * MANY
        low, middle, high = digits_added(same_octets(1), room, at, low, middle, high)
    place = one * NUMBERS
    sums = multiplied(put_together(low, middle, high), floats(number, place + STEPS))
    store(number, place + SUMS, sums)
    store_ints(whole, place + LOW, times(low, -zero))
    store_ints(whole, place + HIGH, times(ints_added(middle, times(high, 256)), -zero))


@inlined
def digits_added(codes, room, at, low, middle, high):
    """Add the products of 64 codes with each digit to a sum of its own."""
    low = products_added(low, codes, many_octets(room, at))
    middle = products_added(middle, codes, many_octets(room, at + MANY))
    return low, middle, products_added(high, codes, many_octets(room, at + 2 * MANY))


@kernel(before=cut_few)
def multiply_few(block, order, zero, room, x, of, matrix, y):
    """Write the products of x (M, K) with a block of rows of a matrix (N, K) to y (M, N).

    What is not finite there, or has no digits and is NaN therefore, is to be done again: the last
    octet of the room says so.
    """
    columns = x.shape[1]
    for token in range(len(x)):
        begin, whole, number, mark = parts_of(of, room, token, columns)
        for row in range(block * ROWS, min(block * ROWS + ROWS, y.shape[1])):
            result = np.float32(np.nan)
            if room[mark]:
                result = whole_dot(of, room, begin, whole, number, matrix, row, columns)
            if not np.isfinite(result):
                room[-1] = 1
            y[token, row] = result


@inlined
def whole_dot(of, room, begin, whole, number, matrix, row, columns):
    """Multiply one row by the digits of a token. Not finite if a scale or an offset is not."""
    lanes = rests = splat(np.float32(0))
    for turn in range(columns // (MANY * of.shared * of.turn)):
        for within in range(of.turn):
            one = turn * of.turn + within
            prefetch(of, matrix[0], row * matrix[0].shape[1] + one * of.apart)
            place = one * NUMBERS
            # Codes before levels: LLVM would cut them out of what was read for these, byte by byte.
            some = sums_of(of, room, begin, whole, place, matrix, row, one * of.shared)
            scale, offset = lane_levels(of, matrix, row, one * of.shared)
            # Not the step by the scale: both may be tiny.
            some = multiplied(some, floats(number, place + STEPS))
            lanes = fma(some, scale, lanes)
            if of.rest:
                offset = fma(scale, splat(np.float32(of.zero)), offset)
                rests = fma(offset, floats(number, place + SUMS), rests)
    return total(added(lanes, rests))


@inlined
def sums_of(of, room, begin, whole, place, matrix, row, first):
    """Return the sums of products of codes of one set of levels, lane by lane."""
    low, middle, high = ints(whole, place + LOW), ints(whole, place + HIGH), no_ints()
    for vector in range(first, first + of.shared):
        codes = many_codes(of, matrix, row, vector)
        at = begin + vector * EXACT * MANY
        low, middle, high = digits_added(codes, room, at, low, middle, high)
    return put_together(low, middle, high)
