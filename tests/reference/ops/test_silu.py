import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import cast, normal
from tests.ops_backends import DTYPES
from tests.tolerances import assert_close, assert_same_bits

DEEPEST = np.array([-88.8], np.float32)
EDGES = [(np.nan, np.nan), (np.inf, np.inf), (0.0, 0.0), (-0.0, -0.0), (50.0, 50.0)]
# exp(88.8) is infinite in float32, so MLX's sigmoid ends here; the others take exp(-88.8) instead.
TRUE = float(DEEPEST[0]) * math.exp(DEEPEST[0])
DEEP = {"reference": TRUE, "mlx": -0.0, "cpu": TRUE}


def by_loop(x) -> np.ndarray:
    """Take x / (1 + exp(-x)) in Python's floats, with 0 for what is too small for them."""
    return np.array([v / (1 + math.exp(-v)) if v > -700 else -0.0 for v in np.ravel(x).tolist()])


@settings(max_examples=60)
@given(value=st.floats(-80, 2.0**99, width=32))
def test_follows_its_formula(precision, value):
    """By loop."""
    backend, dtype = precision
    x = cast([value], dtype)
    if np.isfinite(x[0]):
        assert_close(backend.silu(x), by_loop(x), kind="pointwise", backend=backend)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("low, high", [(0, 0x7F80), (0x8000, 0xFF80)])
def test_every_half_is_rounded_once(name, low, high):
    """By loop: all finite bit patterns of both signs, the reference alone."""
    from lockstep.reference.ops import silu

    x = np.arange(low, high, dtype=np.uint16).view(DTYPES[name])
    x = x[np.isfinite(x)]
    x = x[x.astype(np.float32) > -85]  # below, float32 itself runs out of exponents
    assert len(x) > 10_000
    assert_close(silu(x), by_loop(x.astype(np.float64)), kind="pointwise", each=True)


def test_edges(precision):
    """By hand: NaN propagates, large values are left alone, zeros keep their sign."""
    backend, dtype = precision
    x, expected = cast(EDGES, dtype).T
    assert_same_bits(backend.silu(x), expected)


def test_minus_infinity(precision):
    """By hand: the limit is -0; MLX multiplies -inf by 0, as its docstring says."""
    backend, dtype = precision
    expected = cast([np.nan if backend.name == "mlx" else -0.0], dtype)
    assert_same_bits(backend.silu(cast([-np.inf], dtype)), expected)


@pytest.mark.parametrize("value", [-1e4, -3e38])
def test_underflow_is_quiet(backend, value):
    """By hand: -0, and no warning. At -3e38 as well, where exp(-x) has long overflowed."""
    x = np.array([value], np.float32)
    assert_same_bits(backend.silu(x), np.array([-0.0], np.float32))


def test_where_the_exponential_overflows(backend):
    """By hand: x * exp(x) at -88.8, where exp(-x) overflows float32; MLX gives -0."""
    found = backend.silu(DEEPEST)
    assert_close(found, [DEEP[backend.name]], kind="pointwise")
    assert np.signbit(found)


def test_the_odd_part_is_half_of_x(precision):
    """By law: silu(x) - silu(-x) = x, for sigmoid(x) + sigmoid(-x) = 1."""
    backend, dtype = precision
    x = normal(0, 50, dtype=dtype)
    odd = backend.silu(x).astype(np.float64) - backend.silu(-x).astype(np.float64)
    assert_close(cast(odd, dtype), x, kind="rounded twice", backend=backend)
