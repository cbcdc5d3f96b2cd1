import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import cast, normal
from tests.ops_backends import DTYPES
from tests.tolerances import assert_close, assert_same_bits

EDGES = [(np.nan, np.nan), (np.inf, np.inf), (0.0, 0.0), (-0.0, -0.0), (50.0, 50.0)]
BY_HAND = [
    (-3, -0.00363739208),
    (-1, -0.158808009),
    (-0.5, -0.15428599),
    (0.5, 0.34571401),
    (1, 0.841191991),
    (2, 1.95459769),
    (3, 2.99636261),
]


def exact(value: float) -> float:
    """Take the formula in Python's floats, in the form that loses nothing below zero."""
    inner = math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)
    return value / (1 + math.exp(-2 * inner)) if inner > -350 else -0.0


def by_loop(x) -> np.ndarray:
    return np.array([exact(value) for value in np.ravel(x).astype(np.float64).tolist()])


@pytest.mark.parametrize("value, answer", BY_HAND)
def test_values_from_tables(backend, value, answer):
    """By hand: worked out with 40 digits by mpmath, rounded to 9."""
    found = float(backend.gelu_tanh(np.array([value], np.float32))[0])
    assert found == pytest.approx(answer, abs=2e-7 + 2e-7 * abs(answer))


@settings(max_examples=60)
@given(value=st.floats(-8, 8, width=32))
def test_follows_its_formula(precision, value):
    """By loop, beside a 4: where numbers nearly cancel, few digits of a small result are right."""
    backend, dtype = precision
    x = cast([value, 4.0], dtype)
    assert_close(backend.gelu_tanh(x), by_loop(x), kind="pointwise", backend=backend)


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_the_reference_is_right_far_below_zero(name):
    """By loop: relative to each result, where the formula taken literally has no digit left."""
    from lockstep.reference.ops import gelu_tanh

    x = np.linspace(-8, -1, 200).astype(DTYPES[name])
    error = np.abs(gelu_tanh(x) / by_loop(x) - 1).max()
    assert error < {"float64": 1e-12, "float32": 1e-5}[name]


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_every_half_near_zero_is_rounded_once(name):
    """By loop: all bit patterns from -1 to 1, the reference alone."""
    from lockstep.reference.ops import gelu_tanh

    x = np.arange(2**16, dtype=np.uint16).view(DTYPES[name])
    with np.errstate(invalid="ignore"):
        x = x[np.abs(x) <= 1]
    assert len(x) > 10_000
    normals = np.abs(x) > np.float32(2.0**-120)  # float32 itself must not run out of exponents
    x = x[normals]
    assert_close(gelu_tanh(x), by_loop(x), kind="pointwise", each=True)


def test_edges(precision):
    """By hand: NaN propagates, large values are left alone, zeros keep their sign."""
    backend, dtype = precision
    x, expected = cast(EDGES, dtype).T
    assert_same_bits(backend.gelu_tanh(x), expected)


def test_minus_infinity(precision):
    """By hand: the limit is -0; MLX multiplies -inf by 0, as its docstring says."""
    backend, dtype = precision
    expected = cast([np.nan if backend.name == "mlx" else -0.0], dtype)
    assert_same_bits(backend.gelu_tanh(cast([-np.inf], dtype)), expected)


@pytest.mark.parametrize("value", [-50.0, -1e4, -1e30, -3e38])
def test_underflow_and_overflow_are_quiet(backend, value):
    """By hand: -0 below, the value itself above, and no warning though its cube overflows."""
    x = np.array([value, -value], np.float32)
    assert_same_bits(backend.gelu_tanh(x), np.array([-0.0, -value], np.float32))


def test_the_odd_part_is_half_of_x(precision):
    """By law: gelu(x) - gelu(-x) = x, for the two shares sum to 1."""
    backend, dtype = precision
    x = normal(0, 50, dtype=dtype)
    odd = backend.gelu_tanh(x).astype(np.float64) - backend.gelu_tanh(-x).astype(np.float64)
    assert_close(cast(odd, dtype), x, kind="rounded twice", backend=backend)


def test_is_not_the_other_gelu(backend):
    """By hand: the two are 4.7e-4 apart at most, and that far apart somewhere."""
    x = np.linspace(-5, 5, 1001, dtype=np.float32)
    apart = np.abs(backend.gelu_tanh(x) - backend.gelu_erf(x)).max()
    assert 4.6e-4 < apart < 4.8e-4
