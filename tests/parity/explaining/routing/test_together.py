"""Choices of routers where tokens see later ones: by hand, and which bugs do that: by law."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from lockstep.parity.explaining.routing import together
from lockstep.parity.explaining.routing.steering import Steering
from lockstep.parity.explaining.routing.together import settle_together
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.graph import Piece
from lockstep.parity.noise.exact import FLOAT64, exact
from lockstep.reference import ops
from tests.parity.explaining.ports import graph_of, model_of, rewrite_of

ROUTER, TOKENS, EXPERTS = 7, 4, 3
PORT = {(1, 0), (3, 2)}  # which tokens took which experts, in the place of expert 1


@dataclass
class Mixed:
    """One router in whose model each token's error hangs on all tokens' choices.

    Every token may take expert 0 or 2 for expert 1.
    """

    forced: dict = field(default_factory=lambda: {ROUTER: np.zeros((1, TOKENS, EXPERTS), np.int8)})
    count: int = 0

    def taken(self, forced):
        return {(int(t), int(e)) for _, t, e in np.argwhere(forced[ROUTER] > 0)}

    def errors(self, forced):
        self.count += 1
        return np.full(TOKENS, 1.0 + 10 * len(self.taken(forced) ^ PORT))

    def off(self, errors):
        return errors > 1.0

    def near_pairs(self, number, forced):
        done = {token for token, _ in self.taken(forced)}
        pairs = [(0, t, 1, e) for t in range(TOKENS) for e in (0, 2) if t not in done]
        return np.arange(len(pairs))[::-1].astype(float), np.array(pairs).reshape(-1, 4)


def test_the_choices_of_all_tokens_are_found():
    steering = Mixed()
    errors = settle_together(steering)
    assert steering.taken(steering.forced) == PORT and (errors == 1.0).all()
    assert (steering.forced[ROUTER][0, [1, 3], 1] == -1).all()


def test_what_helps_little_is_not_turned(monkeypatch):
    steering = Mixed()
    monkeypatch.setattr(steering, "errors", lambda forced: np.full(
        TOKENS, 1.0 - 0.001 * len(steering.taken(forced))))  # fmt: skip
    assert (settle_together(steering) == 1.0).all()  # pyright: ignore[reportArgumentType]
    assert not steering.forced[ROUTER].any()


def test_only_choices_of_tokens_that_are_off_are_tried(monkeypatch):
    """By hand: no more than one token shows what it took, though all might be turned."""
    steering, asked = Mixed(), []
    errors, second = steering.errors, np.arange(TOKENS) == 1

    def seen(forced):
        asked.append(steering.taken(forced))
        return np.where(second, errors(forced), 1.0)

    monkeypatch.setattr(steering, "errors", seen)
    settle_together(steering)
    assert {token for taken in asked for token, _ in taken} == {1}


@pytest.mark.parametrize(("most", "found"), [(20, True), (5, False)])
def test_too_many_choices_are_not_tried(most, found, monkeypatch):
    monkeypatch.setattr(together, "MOST", most)
    steering = Mixed()
    assert (settle_together(steering) is not None) == found
    assert steering.count <= most + 1


@pytest.mark.parametrize(
    ("bug", "seen"),
    [("head-merge-without-transpose", True), ("rope-sign-flipped", False), (None, False)],
)
def test_which_bugs_let_a_token_see_later_ones(bug, seen):
    name = "qwen3_moe/separate"
    graph = graph_of(name)
    every = {one.number: rewrite_of(bug)(one, graph) for one in graph.calls} if bug else {}
    calls = {number: call for number, call in every.items() if call is not None}
    read = Tensors(model_of(name).checkpoint)
    runs = [Evaluator(graph, exact(ops, FLOAT64), FLOAT64, {}, read, rows) for rows in (None, 1)]
    steering = Steering(Piece(graph.taps["lm_head"], ()), calls, [], *runs, [])
    assert steering.sees_later_tokens is seen
