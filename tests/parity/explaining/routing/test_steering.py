"""Choices of a router, forced: by hand."""

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.explaining.routing.steering import pushed
from lockstep.reference.ops.top_k_routing import top_k_routing

KINDS = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)


def chosen(scores):
    weights = top_k_routing(scores, per_token=2, normalize=False)
    return [np.flatnonzero(row).tolist() for row in weights[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_forced_experts_are_chosen_and_no_score_moves_for_nothing(kind):
    """One token must take expert 2 for expert 1, one what it likes, and one what it took."""
    scores = np.array([[[4.0, 2.0, 1.5, 0.0], [4.0, 2.0, 1.5, 0.0], [0.0, 1.0, 2.0, 3.0]]], kind)
    forced = np.array([[[0, -1, 1, 0], [0, 0, 0, 0], [-1, -1, 1, 1]]], np.int8)
    found = pushed(None, scores, forced=forced)
    assert found.dtype == scores.dtype
    assert chosen(scores) == [[0, 1], [0, 1], [2, 3]]
    assert chosen(found) == [[0, 2], [0, 1], [2, 3]]
    assert (found[0, 1:] == scores[0, 1:]).all() and (found[0, 0, [0, 3]] == [4, 0]).all()
    assert np.allclose(found[0, 0, [1, 2]].astype(float), 1.75, atol=0.02)  # they meet half-way


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1e-3, -7.0])
def test_a_tie_is_decided_as_it_is_forced(kind, value):
    scores = np.full((1, 1, 4), value, kind)
    forced = np.array([[[-1, 1, -1, 1]]], np.int8)
    assert chosen(scores) == [[0, 1]]
    assert chosen(pushed(None, scores, forced=forced)) == [[1, 3]]
