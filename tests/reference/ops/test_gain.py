import numpy as np
import pytest
from hypothesis import given, settings

from tests.draws import cast, normal, seeds
from tests.tolerances import assert_close, assert_same_bits


@settings(max_examples=30)
@given(seed=seeds)
def test_follows_its_formula(precision, seed):
    """By loop: each feature times its own number."""
    backend, dtype = precision
    x, weights = normal(seed, 2, 3, 4, dtype=dtype), normal(seed + 1, 4, dtype=dtype)
    exact = x.astype(np.float64) * weights.astype(np.float64)
    assert_close(backend.gain(x, weights), exact, kind="pointwise")


def test_a_single_number_is_for_all(precision):
    """By hand: the layer scalar of Gemma 4."""
    backend, dtype = precision
    x = normal(0, 2, 3, 4, dtype=dtype)
    one = cast([0.5], dtype)
    assert_same_bits(backend.gain(x, one), backend.gain(x, np.repeat(one, 4)))


def test_weights_are_rounded_to_the_dtype(backend):
    """By hand: 0.1 of float32 is another number in float16."""
    x, weights = np.ones((1, 1, 1), np.float16), np.array([0.1], np.float32)
    assert_same_bits(backend.gain(x, weights)[0, 0], weights.astype(np.float16))


@pytest.mark.parametrize("shape", [(2,), (1, 4), (0,)])
def test_other_shapes_are_refused(backend, shape):
    """By law: nothing else is broadcast."""
    with pytest.raises(ValueError, match=r"gain: weights\.shape="):
        backend.gain(np.ones((1, 2, 4), np.float32), np.ones(shape, np.float32))
