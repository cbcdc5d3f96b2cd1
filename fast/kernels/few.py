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
from lockstep.fast.kernels.few_words import sums_in_words
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import (
    WIDTH,
    added,
    field,
    fma,
    in_bytes,
    ints_added,
    ints_total,
    multiplied,
    no_ints,
    rint,
    splat,
    to_ints,
    total,
)
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.memory import (
    AHEAD,
    LINE,
    every,
    floats,
    ints,
    prefetch,
    store,
    store_octets,
)
from lockstep.fast.kernels.octets import (
    MANY,
    many_octets,
    products_added,
    put_together,
    same_octets,
    scales_of_spans,
    store_ints,
    times,
)
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.tile import adds_two, possible
from lockstep.fast.kernels.weights import group_levels, lane_levels, many_codes

CHUNKS = MANY // WIDTH
BLOCKS = 2  # at a place: what a kernel does there before its rows takes as long as one of them
PLACE = BLOCKS * ROWS  # rows
APART = ROWS // 2  # rows lie that are multiplied together: a core reads quicker at two places
IN_WORDS = adds_two()
# What goes with the codes of one set of levels: the numbers that sums over the lower digits begin
# with (in words over all), and those over the highest; steps; and the sums of activations. Of each
# sixteen lanes.
LOW, HIGH, STEPS, SUMS, NUMBERS = 0, WIDTH, 2 * WIDTH, 3 * WIDTH, 4 * WIDTH
# Steps that a row's scales are multiplied by, sixteen at once, are so much larger, and its sum is
# made as much smaller: where both are tiny, what the sums of codes make large would be lost. Where
# a step is so large that no float32 holds that, no sum is finite, and the product goes as floats.
RAISED = np.float32(2**30)


def fits(of: Constants, columns: int) -> bool:
    """Whether the codes of a format lie so that 64 at once can be read, and multiplied."""
    stretch = of.numbers.get("stretch")
    lying_so = stretch is not None and columns % stretch == 0
    # Words hold the sums over all vectors that share levels: as if codes were so much larger.
    return lying_so and possible(of.numbers["zero"] * of.numbers["shared"])


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
    three = Constants(format=of.format, **({"apart": apart, "turn": 1, "aside": 0} | numbers))
    _, octets = octets_of(numbers["shared"], numbers.get("aside", 0), numbers["span"], columns)
    return Few(three, order_of(of), numbers["zero"], octets)


@cache
def order_of(of: Constants) -> Constants:
    """Return how activations lie that go with a format: what many formats share."""
    names, aside = ("span", "near", "vectors", "shared", "parts"), of.numbers.get("aside", 0)
    lying = {name: of.numbers[name] for name in names}
    return Constants(format="three digits", aside=aside, **lying)


def octets_of(shared, aside, span, columns):
    """Return how many octets a token's numbers take, and how many all that it has."""
    numbers = NUMBERS * (columns // (MANY * shared))
    if aside:
        sixteens = (columns // aside + WIDTH - 1) // WIDTH
        numbers += sixteens * (1 + aside // span) * WIDTH
    return 4 * numbers, EXACT * columns + 4 * numbers + LINE


inlined_octets_of = inlined(octets_of)


@inlined
def parts_of(of, room, token, columns):
    """Return where a token's digits begin, its numbers, whole and not, and where its mark is.

    Behind the numbers of all lanes are those of groups, if levels lie aside: the sums of sixteen,
    the steps of their first spans, those of their second ones. The mark says whether the token has
    digits. All begins where a line of the cache does.
    """
    numbers, octets = inlined_octets_of(of.shared, of.aside, of.span, columns)
    begin = -room.ctypes.data % LINE + token * octets
    behind = begin + EXACT * columns
    whole = room[behind : behind + numbers].view(np.int32)
    return begin, whole, whole.view(np.float32), behind + numbers


def cut_few(of, zero, room, lost, x):
    """Write the digits of all tokens of x (M, K), once for all rows, sorted as codes lie.

    As yet nothing is lost.
    """
    lost[0] = 0
    for token in range(len(x)):
        cut_token(of, zero, room, x, token)


@inlined
def cut_token(of, zero, room, x, token):
    columns = x.shape[1]
    begin, whole, number, mark = parts_of(of, room, token, columns)
    sums = columns // (MANY * of.shared) * NUMBERS
    room[mark] = 0
    number[sums:] = 0
    for span in range(columns // of.span):
        at = token * columns + span * of.span
        step, fit = step_of(of.span, LIMIT, x, at)
        if not fit:
            return
        lanes = no_ints()
        for more in range(of.span // WIDTH):
            vector, chunk = place_of(of, span * (of.span // WIDTH) + more)
            to = begin + vector * EXACT * MANY + chunk * WIDTH
            some = every(of, x, at + more // of.parts * of.parts * WIDTH + more % of.parts)
            lanes = ints_added(lanes, cut_chunk(some, step, room, to))
            lane = vector // of.shared * NUMBERS + STEPS + chunk * CHUNKS
            number[lane : lane + CHUNKS] = step
        if of.aside:
            spans = of.aside // of.span
            at = sums + in_sixteens(span // spans, 1 + spans)
            number[at] += step * np.float32(ints_total(lanes))
            number[at + (1 + span % spans) * WIDTH] = step * RAISED
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
def in_sixteens(group, count):
    """Return where the first of so many numbers of a group lies: the others lie sixteen apart."""
    return group // WIDTH * count * WIDTH + group % WIDTH


@inlined
def cut_chunk(some, step, room, to):
    """Write the digits of sixteen numbers, and return them as they are counted."""
    counted = to_ints(rint(multiplied(some, splat(np.float32(1) / step))))
    octets = in_bytes(counted)
    for digit in range(EXACT):
        store_octets(room, to + digit * MANY, field(octets, 8 * digit, 255))
    return counted


@inlined
def sum_up(of, zero, room, begin, whole, number, one):
    """Write the sums of activations lane by lane, and what stands for codes that are `zero`."""
    low = middle = high = no_ints()
    for vector in range(of.shared):
        at = begin + (one * of.shared + vector) * EXACT * MANY
        low = products_added(low, same_octets(1), many_octets(room, at))
        middle = products_added(middle, same_octets(1), many_octets(room, at + MANY))
        high = products_added(high, same_octets(1), many_octets(room, at + 2 * MANY))
    place, lower = one * NUMBERS, ints_added(low, times(middle, 256))
    if not of.aside:
        counted = put_together(lower, times(high, 256))
        sums = multiplied(counted, floats(number, place + STEPS))
        store(number, place + SUMS, sums)
    if IN_WORDS:
        lower = ints_added(lower, times(high, 65536))
    store_ints(whole, place + LOW, times(lower, -zero))
    store_ints(whole, place + HIGH, times(high, -zero))


@kernel(before=cut_few)
def multiply_few(place, order, zero, room, lost, x, of, matrix, y):
    """Write the products of x (M, K) with `PLACE` rows of a matrix (N, K) to y (M, N).

    What is not finite there, or has no digits and is NaN therefore, is to be done again: then
    `lost` (1) is 1.
    """
    columns = x.shape[1]
    scales = room_for_scales(of, columns)
    for token in range(len(x)):
        begin, whole, number, mark = parts_of(of, room, token, columns)
        for block in range(place * BLOCKS, place * BLOCKS + BLOCKS):
            end = min(block * ROWS + ROWS, y.shape[1])
            for row in range(block * ROWS, min(block * ROWS + APART, end)):
                other = min(row + APART, end - 1)
                here = there = np.float32(np.nan)
                if room[mark]:
                    here, there = two_dots(
                        of, room, begin, whole, number, matrix, row, other, columns, scales
                    )
                if not (np.isfinite(here) and np.isfinite(there)):
                    lost[0] = 1
                y[token, row], y[token, other] = here, there


@inlined
def room_for_scales(of, columns):
    """Make room for what `offsets_added` writes of two rows, if their levels lie aside."""
    groups = (columns // of.group + WIDTH - 1) // WIDTH * WIDTH
    return np.empty((2, groups * (of.group // of.span) if of.aside else 0), np.float32)


@inlined
def two_dots(of, room, begin, whole, number, matrix, row, other, columns, scales):
    """Multiply two rows by the digits of a token, which are read once for both.

    Not finite if a scale or an offset is not.
    """
    here = there = here_rests = there_rests = splat(np.float32(0))
    if of.aside:
        here_rests = offsets_added(of, number, matrix, row, columns, scales, 0)
        there_rests = offsets_added(of, number, matrix, other, columns, scales, scales.shape[1])
    skip, jump = skipped(row, matrix[0]), skipped(other, matrix[0])
    for turn in range(columns // (MANY * of.shared * of.turn)):
        for within in range(of.turn):
            one = turn * of.turn + within
            here, here_rests = set_added(
                of, room, begin, whole, number, matrix, row, one, skip, scales, 0, here, here_rests
            )
            there, there_rests = set_added(
                of, room, begin, whole, number, matrix, other, one, jump, scales, scales.shape[1],
                there, there_rests,
            )  # fmt: skip
    if of.aside:
        here, there = multiplied(here, splat(1 / RAISED)), multiplied(there, splat(1 / RAISED))
    return total(added(here, here_rests)), total(added(there, there_rests))


@inlined
def offsets_added(of, number, matrix, row, columns, scales, to):
    """Multiply a row's offsets by the sums of activations; write its scales times their steps.

    Sixteen groups at a time: as their codes come, each would take as long as sixteen.
    """
    rests, spans = splat(np.float32(0)), of.group // of.span
    for group in range(0, columns // of.group, WIDTH):
        scale, offset = group_levels(of, matrix, row, group)
        offset = fma(scale, splat(np.float32(of.zero)), offset)
        at = columns // (MANY * of.shared) * NUMBERS + group * (1 + spans)
        rests = fma(offset, floats(number, at), rests)
        for span in range(spans):
            step = floats(number, at + (1 + span) * WIDTH)
            store(scales, to + group * spans + span * WIDTH, multiplied(scale, step))
    return rests


@inlined
def set_added(of, room, begin, whole, number, matrix, row, one, skip, scales, own, lanes, rests):
    """Add the products of one set of levels to a row's lanes, and those of offsets to `rests`."""
    at = row * matrix[0].shape[1] + one * of.apart
    prefetch(of, matrix[0], at + skip)
    place = one * NUMBERS
    # Codes before levels: LLVM would cut them out of what was read for these, byte by byte.
    first = one * of.shared
    if IN_WORDS:
        at, low = begin + first * EXACT * MANY, ints(whole, place + LOW)
        some = sums_in_words(of, room, at, low, matrix, row, first)
    else:
        some = sums_of(of, room, begin, whole, place, matrix, row, first)
    if of.aside:
        at = own + in_sixteens(first * MANY // of.group, of.group // of.span)
        return fma(some, scales_of_spans(of, scales, at), lanes), rests
    scale, offset = lane_levels(of, matrix, row, first)
    # Not the step by the scale: both may be tiny.
    some = multiplied(some, floats(number, place + STEPS))
    if of.rest:
        offset = fma(scale, splat(np.float32(of.zero)), offset)
        rests = fma(offset, floats(number, place + SUMS), rests)
    return fma(some, scale, lanes), rests


@inlined
def skipped(row, codes):
    """Return how far to skip the rows that go by beside these, where what is asked for lies there.

    They are read already; behind them begins the next block's half.
    """
    half, at = APART * codes.shape[1], row * codes.shape[1]
    return half if at + AHEAD >= (row // APART + 1) * half else 0


@inlined
def sums_of(of, room, begin, whole, place, matrix, row, first):
    """Return the sums of products of codes of one set of levels, lane by lane.

    Those with the highest digit become the beginning of those with the middle one, and what that
    lacks of codes around zero is among the lowest: so nothing is added but by the products.
    """
    low, high = ints(whole, place + LOW), ints(whole, place + HIGH)
    at = begin + first * EXACT * MANY
    for vector in range(of.shared):
        codes, here = many_codes(of, matrix, row, first + vector), at + vector * EXACT * MANY
        low = products_added(low, codes, many_octets(room, here))
        high = products_added(high, codes, many_octets(room, here + 2 * MANY))
    high = times(high, 256)
    for vector in range(of.shared):
        codes, here = many_codes(of, matrix, row, first + vector), at + vector * EXACT * MANY
        high = products_added(high, codes, many_octets(room, here + MANY))
    return put_together(low, high)
