"""Which of two explanations a port follows, on values made by hand."""

import numpy as np
import pytest

from lockstep.parity.explaining.deciding.duel import Way, way

NOISE = 0.01
RANDOM = np.random.default_rng(2)
ONE = RANDOM.standard_normal((20, 50))
OTHER = ONE * (1 + NOISE * RANDOM.standard_normal(ONE.shape))
ROUNDED = NOISE * RANDOM.standard_normal(ONE.shape)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_port_is_found_on_the_way(share):
    """By law: noise of the size of the way itself hides it in each number, and not in all."""
    found = way(ONE + share * (OTHER - ONE) + ROUNDED, ONE, OTHER, NOISE)
    assert found.long
    assert abs(found.along / found.size - share) < 0.15
    assert found.walked is (share == 1.0)


def test_what_does_the_same_cannot_be_told():
    found = way(ONE + ROUNDED, ONE, ONE, NOISE)
    assert not found.long and not found.walked


@pytest.mark.parametrize(
    ("share", "size", "walked"),
    [(0.8, 900.0, True), (0.7, 900.0, False), (0.7, 1100.0, True), (0.6, 1100.0, False)],
)
def test_of_a_long_way_less_is_enough(share, size, walked):
    """By hand: rounding goes a part of any way, but never so far."""
    assert Way(share * size, size, 100).walked is walked


def test_a_token_that_went_elsewhere_does_not_count():
    """By law: neither does one with a number that is none."""
    port = OTHER.copy()
    port[3], port[4, 7] = 100.0, np.nan
    found = way(port, ONE, OTHER, NOISE)
    assert found.walked and found.count == 18 * 50


def test_ways_add_up():
    """By hand."""
    assert Way(1, 2, 3) + Way(4, 5, 6) == Way(5, 7, 9)
