import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import cast
from tests.tolerances import assert_close, assert_same_bits


@settings(max_examples=60)
@given(value=st.floats(-200, 200, width=32), cap=st.sampled_from([1.5, 30.0, 50.0]))
def test_follows_its_formula(precision, value, cap):
    """By loop, beside the cap: cap * tanh(x / cap) in Python's floats."""
    backend, dtype = precision
    x = cast([value, 1000.0], dtype)
    exact = [cap * math.tanh(one / cap) for one in x.astype(np.float64).tolist()]
    assert_close(backend.softcap(x, cap=cap), exact, kind="pointwise")


@pytest.mark.parametrize(
    "value, answer", [(0, 0), (15, 13.8635147), (30, 22.8478247), (90, 29.8516434)]
)
def test_values_by_hand(backend, value, answer):
    """By hand: 30 * tanh(value / 30), from tables of tanh(0.5), tanh(1) and tanh(3)."""
    found = float(backend.softcap(np.array([value], np.float32), cap=30.0)[0])
    assert found == pytest.approx(answer, rel=3e-7)


def test_infinity_gives_the_cap(precision):
    """By hand: and NaN propagates."""
    backend, dtype = precision
    found = backend.softcap(cast([np.inf, -np.inf, np.nan], dtype), cap=30.0)
    assert_same_bits(found, cast([30.0, -30.0, np.nan], dtype))


def test_the_order_stays(backend):
    """By law: so that a greedy choice is the same."""
    x = np.linspace(-90, 90, 500, dtype=np.float32)
    assert (np.diff(backend.softcap(x, cap=30.0)) > 0).all()
