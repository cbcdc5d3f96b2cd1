import math

import numpy as np
import pytest
from hypothesis import given, settings

from tests.draws import cast, normal, seeds, wild
from tests.tolerances import assert_close, assert_same_bits


@settings(max_examples=30)
@given(seed=seeds)
def test_follows_its_formula(precision, seed):
    """By loop: 0.5 * gate * (1 + tanh(…)) * up."""
    backend, dtype = precision
    gate, up = (normal(seed + i, 2, 3, dtype=dtype) for i in range(2))
    wide = gate.astype(np.float64)
    bent = np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    exact = 0.5 * wide * (1 + bent) * up.astype(np.float64)
    kind = "pointwise" if backend.name == "mlx" else "rounded twice"
    assert_close(backend.geglu(gate, up), exact, kind=kind, backend=backend)


@settings(max_examples=30)
@given(gate=wild(), up=wild())
def test_is_its_two_parts(precision, gate, up):
    """By law: bit for bit `multiply(gelu_tanh(gate), up)`, all edges included."""
    backend, dtype = precision
    gate, up = cast(gate, dtype), cast(up, dtype)
    parts = backend.multiply(backend.gelu_tanh(gate), up)
    assert_same_bits(backend.geglu(gate, up), parts)


def test_the_first_is_gated(backend):
    """By hand: a gate of -30 is shut, an `up` of -30 is not."""
    low, one = np.array([-30], np.float32), np.array([1], np.float32)
    assert abs(backend.geglu(low, one)[0]) < 1e-6
    assert backend.geglu(one, low)[0] < -20


def test_nothing_is_broadcast(backend):
    """By law: shapes must be equal."""
    gate = np.zeros((1, 2, 3), np.float32)
    with pytest.raises(ValueError, match=r"shape=\(1, 2, 1\), but should be \(1, 2, 3\)"):
        backend.geglu(gate, gate[..., :1])
