import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import cast, normal, seeds, sizes
from tests.rounding import nearest
from tests.tolerances import assert_close, assert_same_bits

EPS = 1e-6
ONES = np.ones(2, np.float32)
EDGES = [  # row, eps, answer for a gain of 1
    ([0, 0], EPS, [0, 0]),
    ([0, 0], 0.0, [np.nan, np.nan]),
    ([-0.0, 0], EPS, [-0.0, 0]),
    ([1e20, -1e20], EPS, [0, -0.0]),  # the square overflows float32
    ([1e-30, 0], 0.0, [np.inf, np.nan]),  # the square underflows to 0
    ([np.nan, 1], EPS, [np.nan, np.nan]),
    ([np.inf, 1], EPS, [np.nan, 0]),
    ([5, -5], 0.0, [1, -1]),
]


def by_loop(x, gain, eps: float) -> np.ndarray:
    """Normalise each vector in Python's floats, and multiply by the gain."""
    out = np.empty(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        row = x[place].astype(np.float64).tolist()
        root = math.sqrt(math.fsum(value * value for value in row) / len(row) + eps)
        out[place] = [value / root * float(g) for value, g in zip(row, gain, strict=True)]
    return out


@settings(max_examples=30)
@given(seed=seeds, length=sizes, width=st.integers(1, 40), eps=st.sampled_from([0, EPS, 1.0]))
def test_follows_its_formula(precision, seed, length, width, eps):
    """By loop."""
    backend, dtype = precision
    x, gain = (normal(seed, *s, dtype=dtype) for s in ((2, length, width), (width,)))
    found = backend.rms_norm(x, gain, eps=eps)
    assert_close(found, by_loop(x, gain, eps), kind="rounded twice", backend=backend)


def test_rounds_after_the_norm_and_after_the_gain(precision):
    """By hand: 1, 1, 3, 5 have root mean square 3, so thirds are rounded, then their products."""
    backend, dtype = precision
    row = np.array([1, 1, 3, 5])
    thirds = nearest(row / 3, dtype)
    once = nearest(np.outer(gains(dtype), 1) * (row / 3), dtype)
    twice = nearest(np.outer(gains(dtype), 1) * thirds, dtype)
    assert (once != twice).any() == (dtype != np.float64)  # else nothing is shown
    for gain, answer in zip(gains(dtype), twice, strict=True):
        found = backend.rms_norm(cast(row, dtype), cast([gain] * 4, dtype), eps=0.0)
        assert_close(found, answer, kind="exact" if dtype.itemsize == 2 else "sum")


def gains(dtype) -> np.ndarray:
    return normal(0, 30, dtype=dtype).astype(np.float64)


@pytest.mark.parametrize("row, eps, answer", EDGES)
def test_edges(backend, row, eps, answer):
    """By hand: in float32, as the docstring says, and without a warning."""
    found = backend.rms_norm(np.array(row, np.float32), ONES, eps=eps)
    assert_same_bits(found, np.array(answer, np.float32))


def test_nan_spoils_its_row_alone(backend):
    """By law: rows do not know of each other."""
    x = normal(0, 2, 3, 4)
    x[1, 1, 2] = np.nan
    spoilt = np.isnan(backend.rms_norm(x, normal(1, 4), eps=EPS))
    assert spoilt[1, 1].all() and spoilt.sum() == 4


def test_half_precision_squares_are_taken_in_float32(backend):
    """By hand: 60000 squared is far beyond float16, and its row has root mean square 60000."""
    x = np.full((1, 1, 2), 60000, np.float16)
    found = backend.rms_norm(x, ONES.astype(np.float16), eps=EPS)
    assert_same_bits(found, np.ones((1, 1, 2), np.float16))


@settings(max_examples=20)
@given(seed=seeds, power=st.integers(-20, 20))
def test_the_length_of_a_vector_does_not_matter(backend, seed, power):
    """By law: without eps, a power of two in front changes no bit."""
    x, gain = normal(seed, 1, 3, 8), normal(seed + 1, 8)
    once, scaled = (backend.rms_norm(v, gain, eps=0.0) for v in (x, x * np.float32(2.0**power)))
    assert_same_bits(scaled, once)


def test_eps_stands_inside_the_root(backend):
    """By hand: a row of 1 with eps 3 is divided by sqrt(1 + 3) = 2."""
    found = backend.rms_norm(np.ones((1, 1, 2), np.float32), ONES, eps=3.0)
    assert_same_bits(found, np.full((1, 1, 2), 0.5, np.float32))


def test_heads_are_normalised_alike(backend):
    """By law: (B, L, H, D) is normalised over D, each head on its own."""
    x, gain = normal(0, 1, 2, 3, 4), normal(1, 4)
    heads = [backend.rms_norm(x[:, :, h], gain, eps=EPS) for h in range(3)]
    found = backend.rms_norm(x, gain, eps=EPS)
    assert_close(found, np.stack(heads, axis=2), kind="sum")


def test_no_tokens(precision):
    """By hand: nothing is normalised to nothing."""
    backend, dtype = precision
    found = backend.rms_norm(normal(0, 2, 0, 4, dtype=dtype), normal(1, 4, dtype=dtype), eps=EPS)
    assert (found.shape, found.dtype) == ((2, 0, 4), dtype)
