import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import normal, seeds
from tests.tolerances import assert_same_bits

lengths = st.integers(0, 4)


@settings(max_examples=20)
@given(seed=seeds, held=lengths, new=lengths)
def test_the_past_comes_first(precision, seed, held, new):
    """By loop: token p of the result is one of the past, then one of the new. Both may be empty."""
    backend, dtype = precision
    past, fresh = (normal(seed + i, 2, 3, n, 4, dtype=dtype) for i, n in enumerate((held, new)))
    out = backend.concatenate(past, fresh)
    assert out.shape == (2, 3, held + new, 4)
    for place in range(held + new):
        source = past[:, :, place] if place < held else fresh[:, :, place - held]
        assert_same_bits(out[:, :, place], source)


@settings(max_examples=20)
@given(seed=seeds, a=lengths, b=lengths, c=lengths)
def test_is_associative(backend, seed, a, b, c):
    """By law: how the tokens were cut into steps cannot be seen."""
    x, y, z = (normal(seed + i, 1, 2, n, 3) for i, n in enumerate((a, b, c)))
    left = backend.concatenate(backend.concatenate(x, y), z)
    assert_same_bits(left, backend.concatenate(x, backend.concatenate(y, z)))


def test_one_cache_has_one_dtype(backend):
    """By law: nothing is rounded, so nothing is converted."""
    past = normal(0, 1, 1, 2, 4)
    with pytest.raises(ValueError, match=r"new\.dtype=.*float16, but the cache holds .*float32"):
        backend.concatenate(past, past.astype(np.float16))
