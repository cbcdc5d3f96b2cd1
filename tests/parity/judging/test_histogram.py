"""The spread of a tensor's differences. By hand, by loop and by law."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parity.judging.histogram import (
    CHUNK,
    EMPTY,
    HIGHEST,
    LOWEST,
    Histogram,
    histogram_of,
    tallied,
)
from lockstep.parity.judging.metrics import distance


def histogram(off, size):
    """Count them in parts, of which the last may be short."""
    flat = off.reshape(-1)
    cuts = range(0, flat.size, CHUNK - 1)
    return histogram_of(sum((tallied(flat[at : at + CHUNK - 1]) for at in cuts), EMPTY), size)


def test_a_worked_example():
    off = np.array([0.0, -2.0, 0.5, 0.25, 7.9, np.nan, -np.inf])
    # Over 2: 0, 1, 1/4, 1/8, 3.95: the bins [1/16, 1/4), [1/4, 1) and [1, 4).
    assert histogram(off, 2.0) == Histogram(zero=1, first=-2, counts=(1, 1, 2), not_finite=2)


@pytest.mark.parametrize("size", [0.0, np.nan, np.inf])
def test_against_nothing_there_is_none(size):
    assert histogram(np.ones(3), size) is None


def test_what_is_beyond_the_scale_is_in_its_last_bins():
    found = histogram(np.array([1e-300, 1e300, 5e-324]), 1e-10)
    assert (found.first, sum(found.counts), len(found.counts)) == (LOWEST, 3, HIGHEST - LOWEST)
    assert (found.counts[0], found.counts[-1]) == (2, 1)


def by_loop(values, size):
    fraction, exponent = math.frexp(size)
    counts, size = {}, math.ldexp(math.floor(fraction * 32 + 0.5) / 32, exponent)
    for value in values:
        if value:
            power = min(math.floor(math.log2(abs(value) / size)) // 2, HIGHEST - 1)
            counts[power] = counts.get(power, 0) + 1
    return counts


@given(st.lists(st.floats(-1e3, 1e3).filter(lambda x: x == 0 or abs(x) > 1e-6)),
       st.floats(0.01, 100))  # fmt: skip
def test_the_counts_are_those_of_a_loop(values, size):
    found = histogram(np.array(values, np.float64), size)
    counts = {found.first + i: count for i, count in enumerate(found.counts) if count}
    assert counts == by_loop(values, size)


def test_every_number_of_a_large_tensor_is_counted_once():
    off = np.random.default_rng(0).standard_normal((3, CHUNK))
    off[1, :5] = 0
    found = histogram(off, 1.0)
    assert (found.zero, sum(found.counts), found.not_finite) == (5, off.size - 5, 0)


def test_a_size_is_rounded_to_a_sixteenth_of_its_octave():
    """By hand: 1.02 counts as 1, and 1.04 as 17/16; half the way from 31/16 to 2 counts as 2."""
    for size, edge in ((1.02, 1.0), (1.04, 1.0625), (1.96875, 2.0), (1.96, 1.9375)):
        below = np.nextafter(edge, 0)
        assert histogram(np.array([edge, below, -4 * edge]), size).counts == (1, 1, 1)
        assert histogram(np.array([edge]), size).first == 0


def test_what_a_tally_has_no_step_for_is_at_its_ends():
    """By law: nothing is lost, and what is not finite is at neither."""
    found = tallied(np.array([2.0**-150, -(2.0**-149), 2.0**130, 1e300, np.inf, np.nan, -0.0]))
    assert (found[0], found[1], found[-2], found[-1], found.sum()) == (1, 2, 2, 2, 7)


def test_a_difference_that_is_finite_is_counted_however_small_the_truth_is():
    """By hand: 1e200 over 1e-150 is beyond float64, but not beyond the last bin; infinity is."""
    for most, count, rest in ((1e200, 2, 0), (-1e200, 2, 0), (np.inf, 1, 1)):
        found = distance(np.array([most, 1.0]), np.full(2, 1e-150)).histogram
        assert found == Histogram(0, HIGHEST - 1, (count,), rest)


def test_a_distance_has_it():
    truth = np.full(4, 2.0)
    assert distance(np.array([2.0, 2.0, 2.0, 4.0]), truth).histogram == Histogram(3, 0, (1,), 0)
