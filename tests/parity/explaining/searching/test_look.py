"""The quick measures against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep.parity.explaining.searching.look import FAR, Look, nowhere

NOISE = 1e-3


@some.composite
def values(draw):
    """Return a port's value, a wrong one and a right one, (T, N), and a stretch of the tokens."""
    tokens, width = draw(some.integers(1, 6)), draw(some.integers(2, 5))
    rng = np.random.default_rng(draw(some.integers(0, 10**6)))
    first = draw(some.integers(0, tokens - 1))
    last = draw(some.one_of(some.none(), some.integers(first + 1, tokens)))
    return *rng.standard_normal((3, tokens, width)), first, last


def look(port, wrong, right):
    return Look.of(port, wrong, right, NOISE, careful=True)


def distance(port, wrong):
    """Return the root of a sum of squares over another, by loop, in noises."""
    error = size = 0.0
    for row, other in zip(port.tolist(), wrong.tolist(), strict=True):
        for x, y in zip(row, other, strict=True):
            error, size = error + (x - y) ** 2, size + y**2
    return (error / size) ** 0.5 / NOISE


@given(values())
def test_raw_is_the_distance_by_loop(given):
    port, wrong, right, first, last = given
    found = look(port, wrong, right).raw(first, last)
    assert found == pytest.approx(distance(port[first:last], wrong[first:last]), rel=1e-9)


@given(values())
def test_effect_is_how_far_the_right_value_moves_by_loop(given):
    port, wrong, right, first, last = given
    found = look(port, wrong, right).effect(first, last)
    assert found == pytest.approx(distance(wrong[first:last], right[first:last]), rel=1e-9)


def test_the_usual_effect_leaves_out_what_a_router_may_have_turned():
    """By hand: one token of eight went elsewhere."""
    right = np.ones((8, 3))
    wrong = right + NOISE
    wrong[5] += 50.0
    found = [Look.of(right, wrong, right, NOISE, careful=one) for one in (False, True)]
    assert found[0].usual_effect() == pytest.approx(1.0)
    assert found[0].effect(0, None) == found[1].usual_effect() == found[1].effect(0, None) > 1000


@given(values())
def test_scaled_is_the_least_over_all_factors(given):
    """By law: no factor does better, and the best one that least squares finds does as well."""
    port, wrong, right, first, last = given
    found = look(port, wrong, right).scaled(first, last)
    x, y = wrong[first:last].ravel(), port[first:last].ravel()
    (gain,) = np.linalg.lstsq(x[:, None], y, rcond=None)[0]
    best = np.linalg.norm(y - gain * x) / np.linalg.norm(y) / NOISE
    assert found == pytest.approx(best, rel=1e-5, abs=1e-4)
    assert found <= np.linalg.norm(y - x) / np.linalg.norm(y) / NOISE * (1 + 1e-9)


@given(values())
def test_mixed_is_the_least_over_all_mixtures(given):
    port, wrong, right, first, last = given
    found = look(port, wrong, right).mixed(first, last)
    x = np.stack([wrong[first:last].ravel(), right[first:last].ravel()], axis=1)
    y = port[first:last].ravel()
    gains = np.linalg.lstsq(x, y, rcond=None)[0]
    best = np.linalg.norm(y - x @ gains) / np.linalg.norm(y) / NOISE
    assert found == pytest.approx(best, rel=1e-3, abs=1e-2)


@given(values(), some.sampled_from([2.0, 1.0, -1.0, -0.3]))
def test_a_mixture_of_a_value_and_its_multiple_is_a_factor(given, factor):
    """By law: the two have one direction, so the second adds nothing."""
    port, wrong, _, first, last = given
    found = look(port, wrong, factor * wrong)
    factored = found.scaled(first, last)
    assert found.mixed(first, last) == pytest.approx(factored, rel=1e-3, abs=1e-2)


@given(values())
def test_huge_numbers_are_no_nearer_after_a_factor(given):
    """By law: a factor of the hypothesis changes nothing."""
    port, wrong, right, first, last = given
    one, huge = look(port, wrong, right), look(port, 1e6 * wrong, right)
    assert huge.scaled(first, last) == pytest.approx(one.scaled(first, last), rel=1e-3, abs=1e-2)


@given(values())
def test_the_right_hypothesis_is_at_no_distance(given):
    port, _, right, first, last = given
    one = look(port, port, right)
    assert one.raw(first, last) == 0
    assert one.scaled(first, last) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_far(bad):
    """By hand."""
    port, wrong, right = np.ones((3, 4, 5))
    port = port.copy()
    port[2, 1] = bad
    one = look(port, 2 * wrong, right)
    assert one.raw(0, None) == one.scaled(0, None) == one.mixed(0, None) == FAR
    assert one.raw(0, 2) == pytest.approx(0.5 / NOISE)


def test_zeros_are_at_no_distance_from_zeros_and_far_from_all_else():
    """By hand."""
    nothing, ones = np.zeros((4, 5)), np.ones((4, 5))
    assert look(nothing, nothing, ones).raw(0, None) == 0
    assert look(ones, nothing, ones).raw(0, None) == FAR


def test_another_shape_is_as_far_as_can_be():
    assert nowhere(4).raw(0, None) == nowhere(4).effect(0, None) == FAR


def test_behind_a_router_the_farthest_tokens_do_not_count():
    """By hand: one token of eight is far off; all others are right."""
    port = np.ones((8, 4))
    port[5] = 9
    rough = Look.of(port, np.ones((8, 4)), np.ones((8, 4)), NOISE, careful=False)
    assert rough.raw(0, None) == 0 < look(port, np.ones((8, 4)), np.ones((8, 4))).raw(0, None)
