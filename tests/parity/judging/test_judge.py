"""The gate alone, on arrays small enough to reckon with. By hand, and by law."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parity.judging.judge import EPSILONS, LIMITS, ROUNDING, Limits, judge

FLOAT32 = np.dtype(np.float32)
DTYPES = [np.dtype(one) for one in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)]
INF, NAN = np.inf, np.nan
RIGHT = np.random.default_rng(0).normal(size=(5, 64))
NOISE = 1e-6 * np.random.default_rng(1).normal(size=(5, 64))


def judged(port, centre=RIGHT, ways=None, dtype=FLOAT32):
    ways = [centre + NOISE] if ways is None else ways
    return judge(np.asarray(port), centre, ways, dtype)


def test_the_centre_itself_is_right():
    found = judged(RIGHT)
    assert (found.own_error, found.ratio, found.passed, found.first_bad) == (0, 0, True, None)


def test_the_ratio_is_own_error_over_noise():
    found = judged(RIGHT + 3 * NOISE)
    assert found.ratio == pytest.approx(3, rel=1e-6)
    size = np.sqrt(np.mean(RIGHT**2))
    assert found.noise == pytest.approx(np.sqrt(np.mean(NOISE**2)) / size, rel=0.1)
    assert not found.passed


def test_the_noisiest_way_counts():
    found = judged(RIGHT + NOISE, ways=[RIGHT, RIGHT + 4 * NOISE, RIGHT + NOISE])
    assert found.ratio == pytest.approx(0.25, rel=1e-6)


def test_without_spread_a_rounding_is_the_noise():
    right = np.ones((4, 8))
    for dtype in DTYPES:
        found = judged(right, right, [right], dtype)
        assert found.noise == pytest.approx(ROUNDING * EPSILONS[dtype.name])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda one: one.name)
def test_one_rounding_passes_and_a_hundred_do_not(dtype):
    rounded = RIGHT.astype(dtype).astype(np.float64)
    if dtype == np.float64:
        rounded = np.nextafter(RIGHT, INF)
    assert judged(rounded, ways=[rounded], dtype=dtype).passed
    assert not judged(RIGHT + 100 * (rounded - RIGHT), ways=[rounded], dtype=dtype).passed


def test_a_single_wrong_row_fails():
    port = RIGHT.copy()
    port[3] += 20 * NOISE[3]
    found = judged(port)
    assert found.row_ratio == pytest.approx(20, rel=0.1)
    assert not found.passed
    assert found.first_bad is not None
    assert found.first_bad[0] == 3


def test_a_single_wrong_number_among_many_fails_and_is_named():
    right = np.random.default_rng(2).normal(size=(50, 4000))
    noise = 1e-6 * np.random.default_rng(3).normal(size=right.shape)
    port = right + noise
    port[40, 700] += 100e-6
    found = judged(port, right, [right + noise])
    assert found.ratio < LIMITS["float32"].whole
    assert found.row_ratio < LIMITS["float32"].row
    assert (found.passed, found.first_bad) == (False, (40, 700))


def test_large_numbers_and_noisy_columns_may_be_off_by_more():
    right = np.random.default_rng(4).normal(size=(50, 64))
    right[:, 7] *= 1000
    noise = 1e-6 * right * np.random.default_rng(5).normal(size=right.shape)
    other = 1e-6 * right * np.random.default_rng(6).normal(size=right.shape)
    assert judged(right + other, right, [right + noise]).passed


def test_a_quiet_row_beside_a_loud_one_is_still_judged():
    right = RIGHT.copy()
    right[0] *= 1e6
    port, ways = right.copy(), [right + NOISE]
    port[1] *= 1.001
    assert not judged(port, right, ways).passed


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_not_finite_in_the_port_fails(bad):
    port = RIGHT.copy()
    port[2, 5] = bad
    found = judged(port)
    assert (found.passed, found.first_bad) == (False, (2, 5))


def test_nan_fails_in_the_truth_and_in_both():
    spoiled = RIGHT.copy()
    spoiled[2, 5] = NAN
    assert not judged(RIGHT, spoiled, [RIGHT]).passed
    assert not judged(spoiled, spoiled, [spoiled]).passed
    assert not judged(RIGHT, RIGHT, [RIGHT]).row_ratio > 0
    whole = np.full((2, 3), NAN)
    assert not judged(whole, whole, [whole]).passed


def test_nan_in_a_way_does_not_widen_the_noise():
    way = RIGHT + NOISE
    way[1] = NAN
    assert not judged(RIGHT * 1.01, RIGHT, [way]).passed


def test_equal_infinities_agree_and_excuse_nothing_else():
    right = RIGHT.copy()
    right[0, 0] = INF
    assert judged(right, right, [right]).passed
    port = right.copy()
    port[0, 1] *= 1.01
    assert not judged(port, right, [right]).passed
    port = right.copy()
    port[0, 0] = -INF
    assert not judged(port, right, [right]).passed


def test_an_overflow_fails_even_if_every_way_has_it():
    right = np.full((2, 4), 7e4)
    overflown = np.full((2, 4), INF)
    assert not judged(overflown, right, [overflown], np.dtype(np.float16)).passed


def test_zeros_must_be_zeros():
    zero = np.zeros((3, 4))
    assert judged(zero, zero, [zero]).passed
    port = zero.copy()
    port[1, 2] = 1e-20
    found = judged(port, zero, [zero])
    assert (found.passed, found.first_bad) == (False, (1, 2))


def test_what_underflows_in_the_ports_dtype_may_be_zero():
    right = np.full((2, 4), 2e-8)
    zero = right.astype(np.float16).astype(np.float64)
    assert not zero.any()
    assert judged(zero, right, [zero], np.dtype(np.float16)).passed


def test_few_rows_are_allowed_more_than_many():
    limits = Limits(whole=2, single=6, row=7, cell=20)
    assert limits.over(1) == 6
    assert limits.over(1000) == pytest.approx(2, abs=0.01)
    assert limits.over(4) == 3


@given(st.sampled_from(DTYPES), st.floats(1e-30, 1e30), st.floats(0, 10))
def test_the_verdict_does_not_depend_on_the_unit(dtype, unit, factor):
    step = EPSILONS[dtype.name] * NOISE / 1e-6
    if dtype == np.float16:
        unit = 2.0 ** round(np.log2(unit) / 20)  # float16 has no such range
    one = judged(RIGHT + factor * step, ways=[RIGHT + step], dtype=dtype)
    scaled = judged((RIGHT + factor * step) * unit, RIGHT * unit, [(RIGHT + step) * unit], dtype)
    if abs(one.ratio - LIMITS[dtype.name].over(5)) > 0.1:
        assert scaled.passed == one.passed
    assert scaled.ratio == pytest.approx(one.ratio, rel=0.2)
