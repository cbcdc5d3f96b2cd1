import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tolerances import assert_close

SHORT, LONG = (1.0, 1.1, 1.5, 2.0), (1.0, 2.0, 8.0, 32.0)


def stretched(backend, lengths, *, short=SHORT, long=LONG, theta=100.0):
    return backend.rope_frequencies_longrope(
        np.array(lengths),
        theta=theta,
        dims=8,
        short_factor=short,
        long_factor=long,
        original_max_position_embeddings=16,
    )


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    theta=st.floats(2, 1e9),
    short=st.lists(st.floats(0.5, 9), min_size=4, max_size=4),
    long=st.lists(st.floats(0.5, 90), min_size=4, max_size=4),
)
def test_follows_its_formula(backend, lengths, theta, short, long):
    """By loop: each row by its own length."""
    found = stretched(backend, lengths, short=tuple(short), long=tuple(long), theta=theta)
    exact = [
        [math.pow(theta, -j / 4) / (long if length > 16 else short)[j] for j in range(4)]
        for length in lengths
    ]
    assert_close(found, exact, kind="rotation", each=True)


def test_the_original_length_is_short(backend):
    """By hand: 16 of 16 tokens, and one more."""
    ratio = backend.rope_frequencies(theta=100.0, dims=8) / stretched(backend, [0, 16, 17])
    np.testing.assert_allclose(ratio, [SHORT, SHORT, LONG], rtol=1e-12)


def test_no_rows(backend):
    """By hand: nothing in, nothing out."""
    assert stretched(backend, np.zeros(0, int)).shape == (0, 4)


@pytest.mark.parametrize(
    "wrong",
    [{"short": SHORT[:3]}, {"long": (*LONG, 1.0)}, {"short": (0.0, *SHORT[1:])},
     {"short": SHORT[:3], "long": LONG[:3]}],
)  # fmt: skip
def test_one_positive_divisor_a_pair(backend, wrong):
    """By law: no more, no fewer, none that is 0."""
    with pytest.raises(ValueError, match="divisors, but should be 4 of each, positive"):
        stretched(backend, [3], **wrong)
