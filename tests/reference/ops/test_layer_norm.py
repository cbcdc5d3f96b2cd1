import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import cast, normal, seeds, sizes
from tests.rounding import nearest
from tests.tolerances import assert_close, assert_same_bits

EPS = 1e-5
GAIN, BIAS = np.ones(2, np.float32), np.full(2, 0.5, np.float32)
EDGES = [  # row, eps, answer for a gain of 1 and a bias of 0.5
    ([0, 0], EPS, [0.5, 0.5]),
    ([7, 7], EPS, [0.5, 0.5]),  # a constant row has no variance
    ([7, 7], 0.0, [np.nan, np.nan]),
    ([1, -1], 0.0, [1.5, -0.5]),
    ([102, 100], 0.0, [1.5, -0.5]),  # the mean is taken away
    ([1e20, -1e20], EPS, [0.5, 0.5]),  # the square overflows float32
    ([np.nan, 1], EPS, [np.nan, np.nan]),
    ([3e38, 3e38], EPS, [np.nan, np.nan]),  # the sum overflows too, and with it the mean
    ([np.inf, 1], EPS, [np.nan, np.nan]),
    ([-np.inf, 1], EPS, [np.nan, np.nan]),
]


def by_loop(x, gain, bias, eps: float) -> np.ndarray:
    """Centre and normalise each vector in Python's floats."""
    out = np.empty(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        row = x[place].astype(np.float64).tolist()
        mean = math.fsum(row) / len(row)
        root = math.sqrt(math.fsum((value - mean) ** 2 for value in row) / len(row) + eps)
        scales = zip(row, gain.tolist(), bias.tolist(), strict=True)
        out[place] = [(value - mean) / root * float(g) + float(b) for value, g, b in scales]
    return out


@settings(max_examples=30)
@given(seed=seeds, length=sizes, width=st.integers(1, 40), eps=st.sampled_from([EPS, 1.0]))
def test_follows_its_formula(precision, seed, length, width, eps):
    """By loop. MLX on a CPU rounds the mean too: its halves are held to the same, times 4."""
    backend, dtype = precision
    shapes = ((2, length, width), (width,), (width,))
    x, gain, bias = (normal(seed + n, *shape, dtype=dtype) for n, shape in enumerate(shapes))
    found = backend.layer_norm(x, gain, bias, eps=eps)
    exact = by_loop(x, gain, bias, eps)
    if backend.name == "mlx" and dtype.itemsize == 2:
        slack = 4 * np.finfo(np.float16).eps if dtype == np.float16 else 2**-5
        size = max(np.abs(exact).max(), np.abs(gain.astype(np.float64)).max() * width**0.5, 1)
        assert np.abs(found.astype(np.float64) - exact).max() <= slack * size
    else:
        assert_close(found, exact, kind="rounded twice", backend=backend)


def test_rounds_once(precision):
    """By hand: 1, 1, 1, 5 has mean 2 and variance 3; the reference rounds the sum alone."""
    backend, dtype = precision
    row = np.array([1, 1, 1, 5])
    for seed in range(30):
        gain, bias = (normal(seed + n, 4, dtype=dtype).astype(np.float64) for n in (0, 100))
        found = backend.layer_norm(cast(row, dtype), cast(gain, dtype), cast(bias, dtype), eps=0.0)
        exact = (row - 2) / math.sqrt(3) * gain + bias
        if backend.name == "reference":
            assert_close(found, exact, kind="sum")
        else:
            assert_close(found, nearest(exact, dtype), kind="rounded thrice")


@pytest.mark.parametrize("row, eps, answer", EDGES)
def test_edges(backend, row, eps, answer):
    """By hand: in float32, as the docstring says, and without a warning."""
    found = backend.layer_norm(np.array(row, np.float32), GAIN, BIAS, eps=eps)
    assert_same_bits(found, np.array(answer, np.float32))


def test_a_wide_row_overflows_in_its_sum_before_its_values_do(backend):
    """By hand: 1,024 times 1e36 is beyond float32, 1,024 times 1e30 is not."""
    gain, bias = np.ones(1024, np.float32), np.full(1024, 0.5, np.float32)
    rows = np.repeat(np.float32([[1e30], [1e36]]), 1024, axis=1)
    rows[:, 0] *= -1  # not constant: its mean is rounded
    found = backend.layer_norm(rows, gain, bias, eps=EPS)
    assert_same_bits(found[0], bias)
    assert np.isnan(found[1]).all()


def test_a_rounded_mean_of_equal_values_leaves_the_gain(backend):
    """By hand: what rounding leaves of them is the same d everywhere, and d / sqrt(d * d) is 1."""
    gain, bias = np.full(1024, 2, np.float32), np.full(1024, 0.5, np.float32)
    found = backend.layer_norm(np.full((1, 1024), 1e19, np.float32), gain, bias, eps=EPS)
    assert_close(np.abs(found - bias), np.full((1, 1024), 2.0), kind="sum")


def test_nan_spoils_its_row_alone(backend):
    """By law: rows do not know of each other."""
    x = normal(0, 2, 3, 4)
    x[1, 1, 2] = np.nan
    spoilt = np.isnan(backend.layer_norm(x, normal(1, 4), normal(2, 4), eps=EPS))
    assert spoilt[1, 1].all() and spoilt.sum() == 4


def test_half_precision_squares_are_taken_in_float32(backend):
    """By hand: 30000 squared is far beyond float16."""
    x = np.array([[[30000, -30000]]], np.float16)
    found = backend.layer_norm(x, GAIN.astype(np.float16), BIAS.astype(np.float16), eps=EPS)
    assert_same_bits(found, np.array([[[1.5, -0.5]]], np.float16))


@settings(max_examples=20)
@given(seed=seeds, shift=st.integers(-8, 8))
def test_what_is_added_to_every_value_does_not_matter(backend, seed, shift):
    """By law: the mean takes it away; whole numbers, so that nothing is lost by adding."""
    x = np.random.default_rng(seed).integers(-8, 9, (1, 3, 8)).astype(np.float32)
    gain, bias = normal(seed, 8), normal(seed + 1, 8)
    once, moved = (backend.layer_norm(v, gain, bias, eps=EPS) for v in (x, x + np.float32(shift)))
    assert_close(moved, once, kind="sum")


def test_eps_stands_inside_the_root(backend):
    """By hand: 1 and -1 have variance 1; with eps 3 they are divided by sqrt(1 + 3) = 2."""
    x = np.array([[[1, -1]]], np.float32)
    found = backend.layer_norm(x, GAIN, BIAS, eps=3.0)
    assert_same_bits(found, np.array([[[1.0, 0.0]]], np.float32))


def test_the_variance_divides_by_the_width(backend):
    """By hand: 1 and -1 have variance 1, where dividing by one less would give 2."""
    found = backend.layer_norm(np.array([[[1, -1]]], np.float32), GAIN, 0 * BIAS, eps=0.0)
    assert_same_bits(found, np.array([[[1, -1]]], np.float32))


def test_no_tokens(precision):
    """By hand: nothing is normalised to nothing."""
    backend, dtype = precision
    x, gain = normal(0, 2, 0, 4, dtype=dtype), normal(1, 4, dtype=dtype)
    found = backend.layer_norm(x, gain, gain, eps=EPS)
    assert (found.shape, found.dtype) == ((2, 0, 4), dtype)
