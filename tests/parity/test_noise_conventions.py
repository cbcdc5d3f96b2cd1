"""How engines round, to the bit."""

import numpy as np
import pytest

from lockstep.parity.noise.conventions import flash, wide_until_shares
from lockstep.parity.noise.half import half_table_rope

HALF = np.dtype(np.float16)


@pytest.mark.parametrize(("policy", "share"), [("uniform", 0.25), ("zero", 0.0), ("nan", np.nan)])
def test_a_query_that_sees_no_key_follows_the_models_policy_in_fused_attention(policy, share):
    """By hand: the second of two queries sees none of four keys, the first one two equal ones."""
    scores = np.ones((1, 1, 2, 4), HALF)
    mask = np.array([[[[True, True, False, False], [False] * 4]]])
    found = flash(HALF)["softmax"](scores, mask, masked_row=policy)
    np.testing.assert_array_equal(found[0, 0], [[0.5, 0.5, 0, 0], [share] * 4])
    assert found.dtype == np.float32


def test_shares_alone_are_rounded_behind_wide_scores():
    """By hand: scores that float16 has no number for; a share of 1 / 3 is rounded."""
    ops = wide_until_shares(HALF)
    queries, keys = np.array([[[[256, 1]]]], HALF), np.array([[[[256, 0]] * 3]], HALF)
    scores = ops["attention_scores"](queries, keys, scale=1.0)
    assert scores.tolist() == [[[[65536.0] * 3]]] and scores.dtype == np.float32
    shares = ops["softmax"](scores, np.ones((1, 1, 1, 3), bool), masked_row="uniform")
    assert shares.dtype == HALF and shares.tolist() == [[[[float(HALF.type(1 / 3))] * 3]]]


def test_a_turn_by_rounded_tables_is_rounded_once():
    """By hand: one pair of numbers at position 1, by an angle of 1."""
    cos, sin = float(HALF.type(np.cos(np.float32(1)))), float(HALF.type(np.sin(np.float32(1))))
    found = half_table_rope(
        np.array([[[[3, 5]]]], HALF), np.array([[1]]), np.array([1.0]), factor=1.0
    )
    want = [float(HALF.type(3 * cos - 5 * sin)), float(HALF.type(5 * cos + 3 * sin))]
    assert found.dtype == HALF and found.tolist() == [[[want]]]
