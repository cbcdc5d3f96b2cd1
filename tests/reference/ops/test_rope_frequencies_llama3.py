import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tolerances import assert_close

LLAMA_3_1 = {
    "theta": 500_000.0,
    "dims": 128,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def by_loop(theta, dims, factor, low_freq_factor, high_freq_factor, original) -> list[float]:
    """Follow Meta's code, which compares wavelengths, in Python's floats."""
    out = []
    for j in range(dims // 2):
        plain = math.pow(theta, -2 * j / dims)
        wavelength = 2 * math.pi / plain
        if wavelength < original / high_freq_factor:
            out.append(plain)
        elif wavelength > original / low_freq_factor:
            out.append(plain / factor)
        else:
            span = high_freq_factor - low_freq_factor
            smooth = (original / wavelength - low_freq_factor) / span
            out.append((1 - smooth) * plain / factor + smooth * plain)
    return out


@settings(max_examples=40)
@given(
    theta=st.floats(2, 1e9),
    pairs=st.integers(1, 64),
    factor=st.floats(1, 64),
    low=st.floats(0.5, 4),
    width=st.floats(0.5, 8),
    original=st.integers(1, 10_000),
)
def test_follows_its_formula(backend, theta, pairs, factor, low, width, original):
    """By loop: all three regions."""
    found = backend.rope_frequencies_llama3(
        theta=theta,
        dims=2 * pairs,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=low + width,
        original_max_position_embeddings=original,
    )
    exact = by_loop(theta, 2 * pairs, factor, low, low + width, original)
    assert_close(found, exact, kind="rotation", each=True)


def test_the_published_model(backend):
    """By witness: eight frequencies of Llama 3.1, `_compute_llama3_parameters` of transformers."""
    found = backend.rope_frequencies_llama3(**LLAMA_3_1)
    first = [1.0, 0.01656044, 0.003211446, 0.001371894]
    last = [0.000524846, 0.0001785078, 7.784655e-05, 3.068926e-07]
    np.testing.assert_allclose(found[[0, 20, 28, 30]], first, rtol=1e-6)
    np.testing.assert_allclose(found[[32, 34, 36, 63]], last, rtol=1e-6)
    ratio = backend.rope_frequencies(theta=500_000.0, dims=128) / found
    kept, divided = np.isclose(ratio, 1, rtol=1e-9), np.isclose(ratio, 8, rtol=1e-9)
    assert (kept.sum(), divided.sum()) == (29, 29)
    assert (np.diff(found) < 0).all()


@pytest.mark.parametrize("wrong", [{"factor": 0.5}, {"high_freq_factor": 1.0}])
def test_what_has_no_answer(backend, wrong):
    """By law: the two bounds may not meet."""
    with pytest.raises(ValueError, match="but should be at least 1, and rising"):
        backend.rope_frequencies_llama3(**LLAMA_3_1 | wrong)
