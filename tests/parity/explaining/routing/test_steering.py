"""Choices of a router, forced: by hand."""

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.explaining.routing.steering import Steering, pushed
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


class Twice(Steering):
    """Three tokens, and two routers of two experts. The port took the other one of both at the
    first token, where either of them alone leads away.
    """

    def __init__(self, calls):
        zero = {number: np.zeros((1, 3, 2), np.int8) for number in (4, 9)}
        super().__init__(None, calls, [], None, None, [], zero, noise=1.0)  # pyright: ignore[reportArgumentType]

    def turns(self, token, forced):
        for number, choices in forced.items():
            if not choices[0, token].any():
                other = choices.copy()
                other[0, token] = -1, 1
                yield forced | {number: other}

    def errors(self, forced):
        turned = sum(bool(one[0, 0].any()) for one in forced.values())
        return np.array([(5.0, 9.0, 1.0)[turned], 5.0, 1.0])

    def measured(self, some):
        return [(one, self.errors(one)) for one in some]


@pytest.mark.parametrize(("calls", "found"), [({}, True), ({3: None}, False)])
def test_right_arithmetic_may_have_two_choices_of_the_first_token_turned(calls, found):
    """By hand. The second token, which is off whatever is turned, is one that may be given up."""
    steering = Twice(calls)
    lost = steering.settle_in_turn()
    assert (lost is not None) is found
    assert all(one[0, 0].any() for one in steering.forced.values()) is found
    assert not found or lost.tolist() == [False, True, False]  # pyright: ignore[reportOptionalMemberAccess]


class Third(Twice):
    """The same at the third token, while the one before it is off whatever is turned."""

    def errors(self, forced):
        turned = sum(bool(one[0, 2].any()) for one in forced.values())
        return np.array([1.0, 5.0, (5.0, 9.0, 1.0)[turned]])


def test_two_choices_of_a_later_token_are_not_turned_if_many_are_given_up():
    """By hand. One of two tokens before it is given up, and it would be the second."""
    steering = Third({})
    assert steering.settle_in_turn() is None
    assert not any(one.any() for one in steering.forced.values())


class Scored(Steering):
    """One router of three experts, whose scores (1, 3, 3) are as they are given."""

    def __init__(self, scores, forced, near):
        made = {4: np.array([forced], np.int8)}
        super().__init__(None, {}, [], None, None, [], made, {4: np.array([near])})  # pyright: ignore[reportArgumentType]
        self.given = np.array([scores])

    def measure(self):
        pass

    def scores(self, number):
        return number

    def centre(self, number, forced=None):
        return self.given


@pytest.mark.parametrize(("near", "lost", "legal"), [
    ([0.0, 0.5, 0.0], [False, False, False], True),
    ([0.0, 0.3, 0.0], [False, False, False], False),
    ([0.0, 0.3, 0.0], [False, True, False], True),
])  # fmt: skip
def test_choices_of_others_are_legal_within_the_noise_alone(near, lost, legal):
    """By hand: the second token must take an expert that is 0.4 below the next."""
    scores = [[3.0, 2.0, 1.0], [2.0, 1.4, 1.0], [1.0, 2.0, 3.0]]
    forced = [[1, 1, -1], [1, -1, 1], [0, 0, 0]]
    found = Scored(scores, forced, near)
    assert found.legal(np.array(lost)) is legal
    kept = [[1, 1, -1], [0, 0, 0] if lost[1] else [1, -1, 1], [0, 0, 0]]
    assert found.forced[4][0].tolist() == kept  # later tokens see no choice that may not be
