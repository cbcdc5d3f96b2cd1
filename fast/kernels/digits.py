"""Activations in whole numbers: digits of a byte each, so that products with codes are whole too.

A span of columns has one step, and a number is its digits: `step * (65536 * a + 256 * b + c)` with
digits from -128 to 127. Three digits keep a number as near as float32 keeps the products with it.
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
)
from lockstep.fast.kernels.memory import floats, store_octets
from lockstep.fast.shapes import Array

EXACT = 3  # digits that lose no more than float32 does
TOGETHER = 4  # tokens whose digits stand side by side: with them, all sums stay in registers
COST = 4  # times that of a product, a number cut into digits
TINY = np.float32(1e-30)  # what is below it all over a span has a step as if it were this


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


def in_digits(x: Array, of: Constants) -> tuple[Array, Array, Array] | None:
    """Return digits of x (M, K), the whole numbers that sums of products with them begin with, and
    for each span its step and the sum of its numbers. None if a number is not finite.

    They stand in blocks of tokens: (blocks, spans, tokens, ...). A code that is `zero` stands for
    nothing, so the sums begin with as much less.
    """
    numbers = of.numbers
    span, zero, digits = numbers["span"], numbers["zero"], numbers["digits"]
    blocks, tokens, spans = -(-len(x) // TOGETHER), TOGETHER, x.shape[1] // span
    cells = np.zeros((blocks, tokens * digits * x.shape[1]), np.int8)
    sums = np.zeros(blocks * spans * tokens * digits, np.int32)
    steps = np.zeros(blocks * spans * tokens * 2, np.float32)
    unfit = np.zeros(1, np.int32)
    cut(COST * x.size, blocks, cutting(span, zero, digits), x, cells, sums, steps, unfit)
    return None if unfit[0] else (cells, sums, steps)


@kernel
def cut(block, of, x, cells, sums, steps, unfit):
    """Write the digits of a block of tokens of x (M, K)."""
    first, spans = block * of.tokens, x.shape[1] // of.span
    for token in range(first, min(first + of.tokens, len(x))):
        for span in range(spans):
            start = token * x.shape[1] + span * of.span
            place = (block * spans + span) * of.tokens + token - first
            step, finite = step_of(of, x, start)
            if not finite:
                unfit[0] = 1
                return
            whole = np.int64(0)
            for digit in range(of.digits):
                to = place * of.digits + digit
                one = written(of, x, start, step, digit, cells, to * of.span)
                sums[to] = -of.zero * one
                whole += one << (8 * digit)
            steps[2 * place], steps[2 * place + 1] = step, step * np.float32(whole)


@inlined
def step_of(of, x, start):
    """Return what a span is counted in, and whether all of it is finite.

    With more than one digit it is a power of two: what has few bits is kept exactly.
    """
    top = every = splat(np.float32(0))
    for index in range(0, of.span, WIDTH):
        size = magnitude(floats(x, start + index))
        top, every = larger(size, top), added(every, size)
    step = max(largest(top), TINY) / np.float32(of.limit)
    if of.digits > 1:
        step = power_of_two(step)
    return step, total(every) < np.float32(np.inf)


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
