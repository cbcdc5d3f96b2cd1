"""Distances between two tensors. By hand, and by law."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parity.judging.histogram import CHUNK
from lockstep.parity.judging.metrics import Distance, difference, distance, rms

INF, NAN = np.inf, np.nan


def arrays(*values):
    return [np.array(value, np.float64) for value in values]


def test_a_worked_example():
    found = distance(*arrays([6.0, 9.0], [3.0, 4.0]))
    assert found.max_abs == 5
    assert found.rms_rel == pytest.approx(np.sqrt(34 / 25))
    assert found.gain == pytest.approx(54 / 25)
    assert found.cosine == pytest.approx(54 / (5 * np.sqrt(117)))


@pytest.mark.parametrize("factor", [2.0, -1.0, 0.5, 1e150, 1e-150])
def test_the_gain_of_a_scaled_copy_is_the_factor(factor):
    truth = np.array([[1.0, -2.0], [3.0, 0.5]])
    found = distance(truth * factor, truth)
    assert found.gain == pytest.approx(factor)
    assert found.cosine == pytest.approx(np.sign(factor))


def test_nothing_overflows():
    huge = np.array([1e300, -1e300])
    assert distance(huge, huge) == Distance(0, 0, 1, 1)


def test_what_is_not_defined_is_none():
    zero, one = arrays([0.0, 0.0], [1.0, 1.0])
    assert distance(zero, zero) == Distance(0, None, None, None)
    assert distance(one, zero) == Distance(1, None, None, None)
    assert distance(zero, one) == Distance(1, 1, None, 0)
    assert distance(*arrays([], [])) == Distance(0, None, None, None)


def test_equal_infinities_differ_by_nothing():
    assert difference(*arrays([INF, -INF, 1], [INF, -INF, 1])).tolist() == [0, 0, 0]
    assert difference(*arrays([INF, -INF], [-INF, 1])).tolist() == [INF, -INF]


@pytest.mark.parametrize(("port", "truth"), [(NAN, 1.0), (1.0, NAN), (NAN, NAN), (NAN, INF)])
def test_nan_never_vanishes(port, truth):
    found = distance(*arrays([port, 1.0], [truth, 1.0]))
    assert np.isnan(found.max_abs)
    assert np.isnan(found.rms_rel)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(1e-3, 1e3))
def test_rms_scales_with_its_values(values, factor):
    x = np.array(values)
    assert rms(x * factor) == pytest.approx(rms(x) * factor, rel=1e-12, abs=1e-300)


def test_rms_of_nothing_of_zeros_and_of_huge_values():
    assert rms(np.array([])) == 0
    assert rms(np.zeros(3)) == 0
    assert rms(np.array([3e300, 4e300])) == pytest.approx(np.sqrt(12.5) * 1e300)


def whole(port, truth):
    """Return the figures from all numbers at once, as the definitions have them."""
    port, truth = port.astype(np.float64).ravel(), truth.astype(np.float64).ravel()
    size, own = (np.sqrt(np.mean(one**2)) for one in (truth, port))
    overlap = np.mean(truth * port)
    off = port - truth
    return (np.abs(off).max(), np.sqrt(np.mean(off**2)) / size, overlap / size / own,
            overlap / size**2)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("count", [1, CHUNK, CHUNK + 1, 3 * CHUNK - 1])
def test_parts_add_up_to_the_whole(dtype, count):
    """By law: where a tensor is cut changes nothing."""
    rng = np.random.default_rng(count)
    truth = rng.standard_normal((1, count)).astype(dtype)
    port = (1.25 * truth + 1e-2 * rng.standard_normal((1, count))).astype(dtype)
    found = distance(port, truth)
    figures = (found.max_abs, found.rms_rel, found.cosine, found.gain)
    assert figures == pytest.approx(whole(port, truth), rel=1e-12)
    assert found.histogram is not None
    assert found.histogram.zero + sum(found.histogram.counts) == count


def test_memory_does_not_grow_with_the_tensor():
    """By law: of a tensor of 16 MB no copy is made."""
    truth = np.ones((1 << 22,), np.float32)
    tracemalloc.start()
    distance(truth, truth)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < truth.nbytes / 2
