import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tolerances import assert_close

QWEN = {
    "theta": 1_000_000.0,
    "dims": 128,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 32768,
    "truncate": True,
}


def by_loop(theta, dims, factor, beta_fast, beta_slow, original, truncate) -> list[float]:
    """Follow the paper's code in Python's floats."""

    def correction(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = correction(beta_fast), correction(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    out = []
    for j in range(dims // 2):
        extrapolated = math.pow(theta, -2 * j / dims)
        ramp = min(max((j - low) / (high - low), 0), 1)
        out.append(extrapolated / factor * ramp + extrapolated * (1 - ramp))
    return out


@settings(max_examples=60)
@given(
    theta=st.floats(2, 1e9),
    pairs=st.integers(1, 64),
    factor=st.floats(1, 64),
    beta_slow=st.floats(0.5, 4),
    more=st.floats(0.5, 60),
    original=st.integers(1, 100_000),
    truncate=st.booleans(),
)
def test_follows_its_formula(backend, theta, pairs, factor, beta_slow, more, original, truncate):
    """By loop: with whole bounds, and with bounds between two pairs."""
    found = backend.rope_frequencies_yarn(
        theta=theta,
        dims=2 * pairs,
        factor=factor,
        beta_fast=beta_slow + more,
        beta_slow=beta_slow,
        original_max_position_embeddings=original,
        truncate=truncate,
    )
    exact = by_loop(theta, 2 * pairs, factor, beta_slow + more, beta_slow, original, truncate)
    assert_close(found, exact, kind="rotation", each=True)


def test_the_published_setting(backend):
    """By hand: 64 / log(1e6) times log(32768 / 64 pi) is 23.6, times log(32768 / 2 pi) 39.7."""
    ratio = backend.rope_frequencies(theta=1e6, dims=128) / backend.rope_frequencies_yarn(**QWEN)
    assert np.isclose(ratio, 1, rtol=1e-9).sum() == 24  # pairs 0 .. 23
    assert np.isclose(ratio, 4, rtol=1e-9).sum() == 24  # pairs 40 .. 63
    np.testing.assert_allclose(ratio[32], 1 / (1 - 9 / 17 + 9 / 17 / 4), rtol=1e-9)


def test_without_truncation_the_ramp_moves(backend):
    """By law: pair 24 is beyond 23.6, and before pair 40 the ramp is over."""
    whole = backend.rope_frequencies_yarn(**QWEN)
    found = backend.rope_frequencies_yarn(**QWEN | {"truncate": False})
    np.testing.assert_allclose(found[[0, 23, 40, 63]], whole[[0, 23, 40, 63]], rtol=1e-12)
    assert (found[25:39] != whole[25:39]).all()


def test_bounds_that_meet(backend):
    """By hand: equal betas make a step; pairs up to the bound are plain, the rest divided."""
    betas = {"beta_fast": 4.0, "beta_slow": 4.0, "truncate": False}
    found = backend.rope_frequencies_yarn(**QWEN | betas)
    ratio = backend.rope_frequencies(theta=1e6, dims=128) / found
    np.testing.assert_allclose(ratio, np.where(np.arange(64) < 34, 1, 4), rtol=1e-9)


@pytest.mark.parametrize(
    "wrong", [{"factor": 0.5}, {"theta": 1.0}, {"beta_fast": 0.0}, {"beta_slow": -1.0}]
)
def test_what_has_no_answer(backend, wrong):
    """By law: the bounds need logarithms."""
    with pytest.raises(ValueError, match="but should be at least 1, above 1, above 0"):
        backend.rope_frequencies_yarn(**QWEN | wrong)
