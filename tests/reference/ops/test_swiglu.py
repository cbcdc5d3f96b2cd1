import numpy as np
import pytest
from hypothesis import given, settings

from tests.draws import cast, normal, seeds, wild
from tests.tolerances import assert_close, assert_same_bits


@settings(max_examples=30)
@given(seed=seeds)
def test_follows_its_formula(precision, seed):
    """By loop: gate / (1 + exp(-gate)) * up."""
    backend, dtype = precision
    gate, up = (normal(seed + i, 2, 3, dtype=dtype) for i in range(2))
    wide, other = gate.astype(np.float64), up.astype(np.float64)
    exact = wide / (1 + np.exp(-wide)) * other
    kind = "pointwise" if backend.name == "mlx" else "rounded twice"
    assert_close(backend.swiglu(gate, up), exact, kind=kind, backend=backend)


@settings(max_examples=30)
@given(gate=wild(), up=wild())
def test_is_its_two_parts(precision, gate, up):
    """By law: bit for bit `multiply(silu(gate), up)`, both roundings and all edges included."""
    backend, dtype = precision
    gate, up = cast(gate, dtype), cast(up, dtype)
    parts = backend.multiply(backend.silu(gate), up)
    assert_same_bits(backend.swiglu(gate, up), parts)


def test_the_first_is_gated(backend):
    """By hand: silu(-30) is nothing, so a gate of -30 is shut and an `up` of -30 is not."""
    low, one = np.array([-30], np.float32), np.array([1], np.float32)
    assert abs(backend.swiglu(low, one)[0]) < 1e-10
    assert backend.swiglu(one, low)[0] < -20


def test_nothing_is_broadcast(backend):
    """By law: shapes must be equal."""
    gate = np.zeros((1, 2, 3), np.float32)
    with pytest.raises(ValueError, match=r"shape=\(1, 2, 1\), but should be \(1, 2, 3\)"):
        backend.swiglu(gate, gate[..., :1])


def test_the_result_has_the_dtype_of_the_gate(backend):
    """By law: an `up` of another dtype is rounded to it."""
    gate, up = np.array([1], np.float16), np.array([0.1], np.float32)
    expected = backend.swiglu(gate, up.astype(np.float16))
    assert_same_bits(backend.swiglu(gate, up), expected)
