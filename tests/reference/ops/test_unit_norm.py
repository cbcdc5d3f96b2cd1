import numpy as np
from hypothesis import given, settings

from tests.draws import cast, normal, seeds
from tests.tolerances import assert_close, assert_same_bits


@settings(max_examples=30)
@given(seed=seeds)
def test_follows_its_formula(precision, seed):
    """By loop: x / sqrt(mean(x**2) + eps)."""
    backend, dtype = precision
    x = normal(seed, 2, 3, 8, dtype=dtype)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + 1e-3)
    assert_close(backend.unit_norm(x, eps=1e-3), exact, kind="sum", backend=backend)


def test_is_rms_norm_with_a_gain_of_one(precision):
    """By law: to the bit."""
    backend, dtype = precision
    x = normal(0, 2, 3, 8, dtype=dtype)
    found = backend.unit_norm(x, eps=1e-6)
    assert_same_bits(found, backend.rms_norm(x, np.ones(8, dtype), eps=1e-6))


def test_zeros_stay_zeros(precision):
    """By hand: eps keeps them from NaN."""
    backend, dtype = precision
    x = np.zeros((1, 2, 4), dtype)
    assert_same_bits(backend.unit_norm(x, eps=1e-6), x)


def test_nan_spoils_its_row_alone(precision):
    """By hand."""
    backend, dtype = precision
    x = cast([[[np.nan, 1], [3, 4]]], dtype)
    assert np.isnan(backend.unit_norm(x, eps=0.0)).tolist() == [[[True, True], [False, False]]]
