"""Timing engines in turn, with engines and a clock made by hand."""

import itertools

import pytest

from lockstep.parity.bench import measure as module
from lockstep.parity.bench.measure import document, measure, prompt_of, spread


class Counted:
    """An engine whose calls take known times of a clock that nothing else moves."""

    def __init__(self, clock: list[float], prefill: float, step: float):
        self.clock, self.costs, self.calls = clock, (prefill, step), []

    def prefill(self, tokens):
        self.calls.append(("prefill", tuple(tokens)))
        self.clock[0] += self.costs[0]
        return 1

    def step(self, token):
        self.calls.append(("step", token))
        self.clock[0] += self.costs[1]
        return token + 1


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_rates_are_tokens_over_seconds(clock):
    """By hand: 8 tokens in 2 s, then 3 steps of 0.5 s."""
    engines = {"slow": Counted(clock, 2.0, 0.5), "quick": Counted(clock, 1.0, 0.25)}
    slow, quick = measure(engines, [7] * 8, decode=3, rounds=2, progress=lambda name: None)
    assert (slow.prefill.median, slow.decode.median, slow.first_token_s) == (4.0, 2.0, 2.0)
    found = document([slow, quick], model="m")["engines"]
    assert [(one["prefill_ratio"], one["decode_ratio"]) for one in found] == [(1, 1), (2, 2)]
    assert found[1]["same_tokens"]


def test_engines_take_turns_and_the_first_round_is_no_round(clock):
    """By hand: a warm-up and two rounds, each a prefill and two steps fed with what came before."""
    order = []
    engines = {name: Counted(clock, 1.0, 1.0) for name in "ab"}
    measure(engines, [5, 6], decode=2, rounds=2, progress=order.append)
    assert order == ["a", "b"] * 3
    one_round = [("prefill", (5, 6)), ("step", 1), ("step", 2)]
    assert engines["a"].calls == one_round * 3


def test_the_warm_up_is_not_counted(clock):
    """By hand: a first call of 100 s leaves no trace."""
    engine = Counted(clock, 1.0, 1.0)
    costs = itertools.chain([100.0], itertools.repeat(1.0))
    engine.prefill = lambda tokens: clock.__setitem__(0, clock[0] + next(costs)) or 0
    (one,) = measure({"a": engine}, [1], decode=1, rounds=3, progress=lambda name: None)
    assert (one.prefill.low, one.prefill.high) == (1.0, 1.0)


def test_spread():
    """By hand."""
    found = spread([3.0, 1.0, 2.0, 10.0])
    assert (found.median, found.low, found.high) == (2.5, 1.0, 10.0)


def test_the_prompt_repeats():
    """By law: the same for the same length and vocabulary, and within it."""
    assert prompt_of(50, 7) == prompt_of(50, 7)
    assert set(prompt_of(200, 7)) == set(range(7))
