"""Activations in whole numbers: digits of a byte each, so that products with codes are whole too.

A span of columns has one step, and a number is its digits: `step * (65536 * a + 256 * b + c)` with
digits from -128 to 127. With three of them it is off by at most 2**-22.9 of the largest of its
span, as a float32 sum is that the largest takes part in. It takes no part where its weight is 0:
so a token that could lose too much then has no digits, but stays in floats.
"""

from functools import cache

import numpy as np

from lockstep.fast.kernels import matrix_unit
from lockstep.fast.kernels.again import empty_on_a_line
from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import (
    WIDTH,
    field,
    how_many,
    in_bytes,
    ints_added,
    ints_total,
    larger,
    largest,
    magnitude,
    multiplied,
    no_ints,
    power_of_two,
    rint,
    splat,
    to_ints,
)
from lockstep.fast.kernels.matrix_unit import DEEP, WIDE
from lockstep.fast.kernels.memory import floats, signed_octets, store_octets
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.shapes import Array

EXACT = 3  # digits that lose no more than float32 does
TOGETHER = 4  # tokens whose digits stand side by side: with them, all sums stay in registers
UNIT = "amx-int8"  # the matrix unit that multiplies bytes; there as many as a tile has rows for
COST = 4  # times that of a product, a number cut into digits
# The step of what is no smaller than this is a full float32.
TINY = np.float32(1e-20)
# A span has digits if more of its numbers lie above this share of the largest than below. Those
# above are off by at most 2**-22.9 / 2**-12 of themselves, 0.05 %, if the largest meets a weight of
# 0. Zeros are exact and count for neither. Fewer digits are kept to the same rule.
SHARE = np.float32(2**-12)
ABOVE_ZERO = np.float32(2**-149)
HIGHEST = np.finfo(np.float32).max
CODES = 256  # that a number may be multiplied by before a scale makes it small
# What a span's largest number is counted as, at most, in one digit and in three.
ONE_DIGIT, LIMIT = 127, 127 << 16


@cache
def with_digits(of: Constants, digits: int) -> Constants:
    """Return a format's numbers with those of the activations that go with it."""
    tokens, unit = together(of.numbers["span"], digits)
    return Constants(format=of.format, digits=digits, tokens=tokens, unit=unit, **of.numbers)


def together(span: int, digits: int) -> tuple[int, int]:
    """Return how many tokens' digits stand side by side, and whether the matrix unit takes them.

    It does where a span fills its tiles, or half of them: a quarter gains nothing.
    """
    unit = span in (WIDE, WIDE // 2) and matrix_unit.possible(UNIT)
    return (DEEP // digits, 1) if unit else (TOGETHER, 0)


@cache
def cutting(span: int, digits: int) -> Constants:
    """Return the numbers of activations alone, which many formats share.

    A span's largest number is such that its first digit is no more than 127, rounded.
    """
    limit = ONE_DIGIT * 256 ** (digits - 1)
    numbers = {"span": span, "digits": digits, "limit": limit, "tokens": together(span, digits)[0]}
    return Constants(format="digits", **numbers)


def in_digits(x: Array, of: Constants) -> tuple[tuple[Array, Array, Array], Array]:
    """Return digits of x (M, K), the whole numbers that sums of products with them begin with, and
    for each span its step and the sum of its numbers; then which tokens have no digits (M).

    They stand in blocks of tokens: (blocks, spans, tokens, ...). A code that is `zero` stands for
    nothing, so the sums begin with as much less. Of a token without digits they say nothing.
    """
    numbers = of.numbers
    span, zero, digits = numbers["span"], numbers["zero"], numbers["digits"]
    (tokens, _), spans = together(span, digits), x.shape[1] // span
    blocks = -(-len(x) // tokens)
    cells = empty_on_a_line(blocks, tokens * digits * x.shape[1], np.int8)
    cells[-1] = 0  # what fills up the last block
    sums = np.empty(blocks * spans * tokens * digits, np.int32)
    steps = np.empty(blocks * spans * tokens * 2, np.float32)
    unfit = np.zeros(len(x), np.bool_)
    cut(COST * x.size, blocks, cutting(span, digits), zero, x, cells, sums, steps, unfit)
    return (cells, sums, steps), unfit


@kernel
def cut(block, of, zero, x, cells, sums, steps, unfit):
    """Write the digits of a block of tokens of x (M, K)."""
    first, spans = block * of.tokens, x.shape[1] // of.span
    for token in range(first, min(first + of.tokens, len(x))):
        for span in range(spans):
            start = token * x.shape[1] + span * of.span
            place = (block * spans + span) * of.tokens + token - first
            step, fit = step_of(of.span, of.limit, x, start)
            if not fit:
                unfit[token] = True
                break
            write(of, x, start, step, cells, place * of.digits * of.span)
            whole = np.int64(0)
            for digit in range(of.digits):
                one = digits_total(of, cells, (place * of.digits + digit) * of.span)
                sums[place * of.digits + digit] = -zero * one
                whole += one << (8 * digit)
            steps[2 * place], steps[2 * place + 1] = step, step * np.float32(whole)


@inlined
def step_of(span, limit, x, start):
    """Return what a span is counted in, and whether it may be: finite sums, and little lost.

    With more than one digit it is a power of two: what has few bits is kept exactly. The numbers
    are no format's constants, so that this is compiled once for all; inlined, they become some.
    """
    top, finite = splat(np.float32(0)), 0
    for index in range(0, span, WIDTH):
        size = magnitude(floats(x, start + index))
        top, finite = larger(size, top), finite + how_many(size, np.float32(0), HIGHEST)
    high = largest(top)
    step = max(high, TINY) / np.float32(limit)
    if limit > ONE_DIGIT:
        step = power_of_two(step)
    summable = finite == span and high <= HIGHEST / np.float32(CODES * span)
    fit = summable and (high == 0 or high >= TINY)
    return step, fit and most_are_kept(span, x, start, high)


@inlined
def most_are_kept(span, x, start, high):
    """Whether more numbers of a span are near to the largest than between nothing and that."""
    near = far = 0
    for index in range(0, span, WIDTH):
        size = magnitude(floats(x, start + index))
        all_but_zero = how_many(size, ABOVE_ZERO, HIGHEST)
        some = how_many(size, high * SHARE, HIGHEST)
        near, far = near + some, far + all_but_zero - some
    return high == 0 or near > far


@inlined
def write(of, x, start, step, cells, to):
    """Write the digits of each number of a span, one digit of all numbers after another."""
    per = splat(np.float32(1) / step)
    for index in range(0, of.span, WIDTH):
        octets = in_bytes(to_ints(rint(multiplied(floats(x, start + index), per))))
        for digit in range(of.digits):
            store_octets(cells, to + digit * of.span + index, field(octets, 8 * digit, 255))


@inlined
def digits_total(of, cells, at):
    """Sum one digit over a span."""
    lanes = no_ints()
    for index in range(0, of.span, WIDTH):
        lanes = ints_added(lanes, signed_octets(cells, at + index))
    return np.int64(ints_total(lanes))
