"""Activations in whole numbers: digits of a byte each, so that products with codes are whole too.

A span of columns has one step, and a number is its digits: `step * (65536 * a + 256 * b + c)` with
digits from -128 to 127. With three of them it is off by at most 2**-22.9 of the largest of its
span, as a float32 sum is that the largest takes part in. It takes no part where its weight is 0:
so a token that could lose too much then has no digits, but stays in floats.
"""

from functools import cache

import numpy as np

from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.kernel import inlined, kernel
from lockstep.fast.kernels.lanes import (
    WIDTH,
    added,
    higher_digits,
    ints_added,
    ints_total,
    larger,
    largest,
    lowest_digit,
    magnitude,
    multiplied,
    no_ints,
    power_of_two,
    rint,
    splat,
    to_ints,
    total,
    where_below,
)
from lockstep.fast.kernels.memory import floats, store_octets
from lockstep.fast.shapes import Array

EXACT = 3  # digits that lose no more than float32 does
TOGETHER = 4  # tokens whose digits stand side by side: with them, all sums stay in registers
COST = 4  # times that of a product, a number cut into digits
# Times float16's smallest scale, the step of what is no smaller than this is a full float32.
TINY = np.float32(1e-20)
# A span has digits if more of its numbers lie above this share of the largest than below. Those
# above are off by at most 2**-22.9 / 2**-12 of themselves, 0.05 %, if the largest meets a weight of
# 0. Zeros are exact and count for neither. Fewer digits are kept to the same rule.
SHARE = np.float32(2**-12)
ABOVE_ZERO = np.float32(2**-149)


@cache
def with_digits(of: Constants, digits: int) -> Constants:
    """Return a format's numbers with those of the activations that go with it."""
    return Constants(format=of.format, digits=digits, tokens=TOGETHER, **of.numbers)


@cache
def cutting(span: int, zero: int, digits: int) -> Constants:
    """Return the numbers of activations alone, which many formats share.

    A span's largest number is such that its first digit is no more than 127, rounded.
    """
    limit = 127 * 256 ** (digits - 1)
    numbers = {"span": span, "zero": zero, "digits": digits, "limit": limit, "tokens": TOGETHER}
    return Constants(format="digits", **numbers)


def in_digits(x: Array, of: Constants) -> tuple[tuple[Array, Array, Array], Array]:
    """Return digits of x (M, K), the whole numbers that sums of products with them begin with, and
    for each span its step and the sum of its numbers; then which tokens have no digits (M).

    They stand in blocks of tokens: (blocks, spans, tokens, ...). A code that is `zero` stands for
    nothing, so the sums begin with as much less. Of a token without digits they say nothing.
    """
    numbers = of.numbers
    span, zero, digits = numbers["span"], numbers["zero"], numbers["digits"]
    blocks, tokens, spans = -(-len(x) // TOGETHER), TOGETHER, x.shape[1] // span
    cells = np.zeros((blocks, tokens * digits * x.shape[1]), np.int8)
    sums = np.zeros(blocks * spans * tokens * digits, np.int32)
    steps = np.zeros(blocks * spans * tokens * 2, np.float32)
    unfit = np.zeros(len(x), np.bool_)
    cut(COST * x.size, blocks, cutting(span, zero, digits), x, cells, sums, steps, unfit)
    return (cells, sums, steps), unfit


@kernel
def cut(block, of, x, cells, sums, steps, unfit):
    """Write the digits of a block of tokens of x (M, K)."""
    first, spans = block * of.tokens, x.shape[1] // of.span
    for token in range(first, min(first + of.tokens, len(x))):
        for span in range(spans):
            start = token * x.shape[1] + span * of.span
            place = (block * spans + span) * of.tokens + token - first
            step, fit = step_of(of, x, start)
            if not fit:
                unfit[token] = True
                break
            whole = np.int64(0)
            for digit in range(of.digits):
                to = place * of.digits + digit
                one = written(of, x, start, step, digit, cells, to * of.span)
                sums[to] = -of.zero * one
                whole += one << (8 * digit)
            steps[2 * place], steps[2 * place + 1] = step, step * np.float32(whole)


@inlined
def step_of(of, x, start):
    """Return what a span is counted in, and whether it may be: all finite, and little lost.

    With more than one digit it is a power of two: what has few bits is kept exactly.
    """
    top = every = splat(np.float32(0))
    for index in range(0, of.span, WIDTH):
        size = magnitude(floats(x, start + index))
        top, every = larger(size, top), added(every, size)
    high = largest(top)
    step = max(high, TINY) / np.float32(of.limit)
    if of.digits > 1:
        step = power_of_two(step)
    fit = total(every) < np.float32(np.inf) and (high == 0 or high >= TINY)
    return step, fit and most_are_kept(of, x, start, high * SHARE)


@inlined
def most_are_kept(of, x, start, limit):
    """Whether more numbers of a span lie above a limit than between zero and the limit."""
    count = zero = splat(np.float32(0))
    one, less = splat(np.float32(1)), splat(np.float32(-1))
    for index in range(0, of.span, WIDTH):
        size = magnitude(floats(x, start + index))
        below = where_below(size, ABOVE_ZERO, zero, less)
        count = added(count, where_below(size, limit, below, one))
    return total(count) > 0


@inlined
def written(of, x, start, step, digit, cells, to):
    """Write one digit of each number of a span; return their sum."""
    per, lanes = splat(np.float32(1) / step), no_ints()
    for index in range(0, of.span, WIDTH):
        left = to_ints(rint(multiplied(floats(x, start + index), per)))
        for _ in range(digit):
            left = higher_digits(left)
        store_octets(cells, to + index, left)
        lanes = ints_added(lanes, lowest_digit(left))
    return np.int64(ints_total(lanes))
