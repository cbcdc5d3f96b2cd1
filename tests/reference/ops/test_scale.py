import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import cast, normal, seeds, whole
from tests.tolerances import assert_close, assert_same_bits


@settings(max_examples=30)
@given(seed=seeds, by=st.floats(0.01, 100))
def test_follows_its_formula(precision, seed, by):
    """By loop: the number is rounded to the dtype first."""
    backend, dtype = precision
    x = normal(seed, 2, 3, dtype=dtype)
    exact = x.astype(np.float64) * float(cast(by, dtype))
    assert_close(backend.scale(x, by=by), exact, kind="pointwise")


@pytest.mark.parametrize("width, held", [(1536, 39.25), (2560, 50.5), (2816, 53.0), (5376, 73.5)])
def test_the_roots_of_gemma_in_bfloat16(backend, width, held):
    """By hand: what the scale of each build's embedding becomes in bfloat16."""
    one = cast([1.0], "bfloat16")
    assert float(backend.scale(one, by=math.sqrt(width))[0]) == held


def test_a_power_of_two_is_exact(precision):
    """By law: it changes the exponent alone."""
    backend, dtype = precision
    x = whole(0, 2, 3, dtype=dtype)
    assert_same_bits(backend.scale(x, by=0.25), cast(x.astype(np.float64) / 4, dtype))


def test_nan_and_infinity(precision):
    """By hand."""
    backend, dtype = precision
    x = cast([np.nan, np.inf, -np.inf, -0.0], dtype)
    assert_same_bits(backend.scale(x, by=2.0), x)
