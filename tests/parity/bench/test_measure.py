"""Timing engines in turn, with engines and a clock made by hand."""

import itertools

import pytest

from lockstep.parity.bench import timing
from lockstep.parity.bench.measure import compared, measure, prompt_of, spread
from lockstep.parity.bench.timing import Round, quickest, timed
from lockstep.reference.checkpoint.errors import InputError

TOLD = {"bytes_per_token": 10.0, "operations": 60.0}


class Counted:
    """An engine whose calls take known times of a clock that nothing else moves."""

    def __init__(self, clock: list[float], prefill: float, step: float):
        self.clock, self.costs, self.calls, self.rates = clock, (prefill, step), [], []

    def prefill(self, tokens):
        self.calls.append(("prefill", tuple(tokens)))
        self.clock[0] += self.costs[0]
        return 1

    def decode(self, token, count):
        for number in range(token, token + count):
            self.calls.append(("step", number))
            self.clock[0] += self.costs[1]
            yield number + 1

    def run(self, prompt, decode):
        found = timed(self, prompt, decode)
        return Round(found.prefill_s, found.decode_s, found.tokens, peak_bytes=len(self.calls))

    def limits(self, tokens):
        self.calls.append(("limits", tokens))
        if not self.rates:
            return None
        read, made = self.rates.pop(0)
        return TOLD | {
            "bytes_per_second": read, "operations_per_second": made,
            "decode": read / 10, "prefill": made / 60 * tokens,
        }  # fmt: skip


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def quiet(name):
    pass


def refuse(name, error):
    raise error


def timed_by(engines, prompts, *, progress=quiet, leave_out=refuse, **given):
    return measure(engines, prompts, progress=progress, leave_out=leave_out, **given)


def test_rates_are_tokens_over_seconds(clock):
    """By hand: 8 tokens in 2 s, then 3 steps of 0.5 s."""
    engines = {"slow": Counted(clock, 2.0, 0.5), "quick": Counted(clock, 1.0, 0.25)}
    ((slow, quick),) = timed_by(engines, [[7] * 8], decode=3, rounds=2)
    assert (slow.prefill.median, slow.decode.median, slow.first_token_s) == (4.0, 2.0, 2.0)
    found = compared([slow, quick])
    assert [(one["prefill_ratio"], one["decode_ratio"]) for one in found] == [(1, 1), (2, 2)]
    assert found[1]["same_tokens"] and found[1]["limits"] is None


def test_engines_take_turns_and_the_first_round_is_no_round(clock):
    """By hand: a warm-up and two rounds, each a prefill and two steps fed with what came before;
    the limits twice when all rounds are over, so that what measures them disturbs none."""
    order = []
    engines = {name: Counted(clock, 1.0, 1.0) for name in "ab"}
    timed_by(engines, [[5, 6]], decode=2, rounds=2, progress=order.append)
    assert order == ["a", "b"] * 5
    one_round = [("prefill", (5, 6)), ("step", 1), ("step", 2)]
    assert engines["a"].calls == 3 * one_round + 2 * [("limits", 2)]


def test_a_peer_that_fails_in_its_turn_is_left_out_of_all(clock):
    """By hand: what fails in the second round of the second prompt has no row at all."""
    engines = {name: Counted(clock, 1.0, 1.0) for name in "ab"}
    left_out, run, error = [], engines["a"].run, InputError("a", "fell over")
    answers = iter([run, run, run, run, run])

    def failing(prompt, decode):
        return next(answers, lambda *asked: refuse("a", error))(prompt, decode)

    engines["a"].run = failing
    found = timed_by(
        engines, [[5], [5, 6]], decode=1, rounds=2, leave_out=lambda *said: left_out.append(said)
    )
    assert [[one.name for one in run] for run in found] == [["b"], ["b"]]
    assert left_out == [("a", error)]
    with pytest.raises(InputError, match="fell over"):
        timed_by(engines, [[5]], decode=1, rounds=1)


def test_every_prompt_warms_up_before_any_counts(clock):
    """By hand: two calls of warm-up for each prompt; memory is what it was then, here calls."""
    engine = Counted(clock, 1.0, 1.0)
    short, long = timed_by({"a": engine}, [[5], [5, 6]], decode=1, rounds=1)
    fed = [said for kind, said in engine.calls if kind == "prefill"]
    assert fed == [(5,), (5, 6), (5,), (5, 6)]
    assert (short[0].peak_bytes, long[0].peak_bytes) == (2, 4)
    assert (short[0].prefill.median, long[0].prefill.median) == (1.0, 2.0)


def test_the_warm_up_is_not_counted(clock):
    """By hand: a first call of 100 s leaves no trace."""
    engine = Counted(clock, 1.0, 1.0)
    costs = itertools.chain([100.0], itertools.repeat(1.0))
    engine.prefill = lambda tokens: clock.__setitem__(0, clock[0] + next(costs)) or 0
    ((one,),) = timed_by({"a": engine}, [[1]], decode=1, rounds=3)
    assert (one.prefill.low, one.prefill.high) == (1.0, 1.0)


def test_shares_of_the_limits(clock):
    """By hand: of 20, 30 and 20 bytes a second 30 is the most, which is 3 tokens of 10 bytes a
    second; 6 operations a second are 60 in 10 s, for a prompt of 4. One token a second is made, and
    a prompt read in 20 s."""
    engine = Counted(clock, 20.0, 1.0)
    engine.rates = [(20, 5), (30, 3), (20, 6)]
    ((one,),) = timed_by({"a": engine}, [[1] * 4], decode=5, rounds=3)
    (found,) = compared([one])
    limits = found["limits"]
    assert (limits["bytes_per_second"], limits["decode_tokens_per_second"]) == (30, 3)
    assert (limits["operations_per_second"], limits["prefill_tokens_per_second"]) == (6, 0.4)
    assert limits["decode_share"] == pytest.approx(1 / 3)
    assert limits["prefill_share"] == pytest.approx(0.2 / 0.4)


def test_the_quickest_of_a_while(clock):
    """By hand: cold a call takes 30 ms, then 10 ms: three are 50 ms, and two of them warm. What
    takes longer is done twice all the same."""
    for costs, most in (([0.03, 0.011, 0.01], 0.01), ([2.0, 1.0], 1.0)):
        left = iter(costs)
        found = quickest(lambda left=left: clock.__setitem__(0, clock[0] + next(left)))
        assert found == pytest.approx(most) and not [*left]


def test_spread():
    """By hand."""
    found = spread([3.0, 1.0, 2.0, 10.0])
    assert (found.median, found.low, found.high) == (2.5, 1.0, 10.0)


def test_the_prompt_repeats():
    """By law: the same for the same length and vocabulary, and within it."""
    assert prompt_of(50, 7) == prompt_of(50, 7)
    assert set(prompt_of(200, 7)) == set(range(7))
