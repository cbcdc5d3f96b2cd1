import numpy as np
import pytest
from hypothesis import given, settings

from tests.draws import cast, wild
from tests.tolerances import assert_close, assert_same_bits

EDGES = [  # x, y, x + y
    (np.nan, 1, np.nan),
    (np.inf, -np.inf, np.nan),
    (np.inf, 1, np.inf),
    (-0.0, 0.0, 0.0),
    (-0.0, -0.0, -0.0),
]


@settings(max_examples=40)
@given(x=wild(), y=wild())
def test_rounds_the_exact_sum_once(precision, x, y):
    """By law: IEEE 754 addition, overflow and subnormals included."""
    backend, dtype = precision
    x, y = cast(x, dtype), cast(y, dtype)
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) + y.astype(np.float64)
    assert_close(backend.add(x, y), exact, kind="exact")


def test_edges(precision):
    """By hand: NaN propagates, inf - inf is NaN, the sign of zero follows IEEE 754."""
    backend, dtype = precision
    x, y, expected = cast(EDGES, dtype).T
    assert_same_bits(backend.add(x, y), expected)


def test_the_smallest_subnormal_is_kept(precision):
    """By hand: twice the smallest number is the second smallest."""
    backend, dtype = precision
    tiny = np.arange(3).astype(f"u{dtype.itemsize}").view(dtype)
    assert_same_bits(backend.add(tiny[1:2], tiny[1:2]), tiny[2:])


def test_the_second_is_rounded_first(backend):
    """By hand: 70000 has no float16, so it is infinite before it is added."""
    x, y = np.array([-60000], np.float16), np.array([70000], np.float32)
    assert_same_bits(backend.add(x, y), np.array([np.inf], np.float16))


def test_nothing_is_broadcast(backend):
    """By law: shapes must be equal."""
    x = np.zeros((1, 2, 3), np.float32)
    with pytest.raises(ValueError, match=r"add: y\.shape=\(1, 2, 1\), but should be \(1, 2, 3\)"):
        backend.add(x, x[..., :1])
