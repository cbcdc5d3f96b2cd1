"""How engines round, to the bit."""

import numpy as np
import pytest

from lockstep.parity.noise.conventions import flash

HALF = np.dtype(np.float16)


@pytest.mark.parametrize(("policy", "share"), [("uniform", 0.25), ("zero", 0.0), ("nan", np.nan)])
def test_a_query_that_sees_no_key_follows_the_models_policy_in_fused_attention(policy, share):
    """By hand: the second of two queries sees none of four keys, the first one two equal ones."""
    scores = np.ones((1, 1, 2, 4), HALF)
    mask = np.array([[[[True, True, False, False], [False] * 4]]])
    found = flash(HALF)["softmax"](scores, mask, masked_row=policy)
    np.testing.assert_array_equal(found[0, 0], [[0.5, 0.5, 0, 0], [share] * 4])
    assert found.dtype == np.float32
