"""An adapter in half precision beside float32: by hand on a small matrix."""

from types import SimpleNamespace

import numpy as np

from lockstep.reference import ops
from tests.parity.faults.hand_made import variant, wrong
from tests.parity.faults.test_lora import BIAS, SCALE, A, B, W, X, adapted


def half(x):
    """Round to bfloat16 by hand: eight bits from the first one on."""
    step = 2.0 ** (np.floor(np.log2(np.abs(x))) - 7)
    return np.round(x / step) * step


def test_factors_or_all_of_it_in_half_by_hand():
    found = wrong(adapted(), variant("lora-in-half", "factors in bfloat16"))
    expected = X @ W.T + BIAS + SCALE * (X @ half(A).T @ half(B).T)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    found = wrong(adapted(), variant("lora-in-half", "all of it in bfloat16"))
    low = half(half(X) @ half(A).T)
    expected = X @ W.T + BIAS + SCALE * half(low @ half(B).T)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_port_in_half_precision_rounds_there_as_it_likes():
    """By law: it is no bug of such a port, whatever is computed here."""
    here = SimpleNamespace(**{**vars(ops), "port_dtype": np.dtype(np.float16)})
    for what in ("factors", "all of it"):
        found = wrong(adapted(), variant("lora-in-half", f"{what} in bfloat16"), ops=here)
        np.testing.assert_array_equal(found, wrong(adapted(), lambda call, graph: call))
