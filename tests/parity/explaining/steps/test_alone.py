"""A bug of the code that goes on from a prompt, whose prompt is right. By hand: formulas."""

import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.steps import alone
from tests.parity.explaining.ports import ids, model_of
from tests.parity.explaining.steps import test_steps
from tests.parity.explaining.steps.test_steps import MISTRAL, decoded
from tests.sampled import sampled

LENGTHS = (10, 1, 1, 2)


def later(values: np.ndarray, axis: int) -> np.ndarray:
    """Say which tokens are of steps."""
    return (np.arange(values.shape[axis]) >= LENGTHS[0])[:, None]


def ungated(call, graph):
    """Take the gate as it is, in steps."""
    if call.op != "silu":
        return None

    def wrong(ops, x):
        return np.where(later(x, 1), x, ops.silu(x))

    return call.replaced(wrong)


def scaled_twice(call, graph):
    if call.op != "attention_scores":
        return None

    def wrong(ops, queries, keys, *, scale):
        scores = ops.attention_scores(queries, keys, scale=scale)
        return np.where(later(scores, 2), scores * scores.dtype.type(scale), scores)

    return call.replaced(wrong)


def explained(monkeypatch, bugs, level="modules", lengths=LENGTHS, **options):
    monkeypatch.setattr(test_steps, "rewrite_of", lambda bug: bug)
    dump, _ = decoded(MISTRAL, lengths, bugs, level=level)
    return explain(model_of(MISTRAL), dump, **options)


@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize(("bug", "id"), [
    (scaled_twice, "attn-scale-twice"), (ungated, "act-name-from-wrong-field"),
])  # fmt: skip
def test_it_is_named_and_said_to_be_in_steps(bug, id, level, monkeypatch):
    (found,) = explained(monkeypatch, [bug], level).faults
    assert found.id == id
    assert found.variant.endswith("in steps alone")
    assert (found.layers, found.where) == ([0, 1], "from step 1 on")


def test_two_of_them_are_both_named(monkeypatch):
    found = explained(monkeypatch, [scaled_twice, ungated])
    assert ids(found) == {"attn-scale-twice", "act-name-from-wrong-field"}
    assert not found.unexplained


LATER = (10, 1, 3, 1, 1)  # tokens 10, 14 and 15 are fed alone, 11 to 13 together


def scaled_twice_at(tokens):
    def bug(call, graph):
        if call.op != "attention_scores":
            return None

        def wrong(ops, queries, keys, *, scale):
            scores = ops.attention_scores(queries, keys, scale=scale)
            there = np.isin(np.arange(scores.shape[2]), tokens)[:, None]
            return np.where(there, scores * scores.dtype.type(scale), scores)

        return call.replaced(wrong)

    return bug


def one_key_more_at(tokens):
    """Let some tokens see one key beyond the window, as a ring does that has one slot more."""

    def bug(call, graph):
        if call.op != "causal_mask" or call.options["window"] is None:
            return None

        def wrong(ops, queries, keys, *, window):
            right, more = (ops.causal_mask(queries, keys, window=n) for n in (window, window + 1))
            there = np.isin(np.arange(right.shape[2]), tokens)[:, None]
            return np.where(there, more, right)

        return call.replaced(wrong)

    return bug


@pytest.mark.parametrize(("tokens", "passes"), [
    ([10, 14, 15], "in steps of one token alone"),
    ([11, 12, 13], "in chunks of several tokens alone"),
])  # fmt: skip
@pytest.mark.parametrize(("bug", "id"), [
    (scaled_twice_at, "attn-scale-twice"), (one_key_more_at, "kv-ring-size-off-by-one"),
])  # fmt: skip
def test_a_chunk_among_steps_may_be_right_and_steps_wrong(bug, id, tokens, passes, monkeypatch):
    found = explained(monkeypatch, [bug(tokens)], lengths=LATER)
    assert id in {*ids(found), *found.faults[0].also_fits} and not found.unexplained
    assert passes in found.faults[0].variant


@sampled(0)
def test_what_is_in_the_prompt_too_is_not_said_to_be_in_steps(monkeypatch):
    def everywhere(call, graph):
        return call.with_options(scale=0.25**2) if call.op == "attention_scores" else None

    (found,) = explained(monkeypatch, [everywhere]).faults
    assert "alone" not in (found.variant or "")


def test_what_nobody_knows_is_unknown_and_nothing_is_kept_in_mind(monkeypatch):
    def strange(call, graph):
        if call.op != "silu":
            return None
        return call.replaced(lambda ops, x: np.where(later(x, 1), np.sin(7 * x), ops.silu(x)))

    cases = []
    before = alone.explain_steps

    def kept(case, progress):
        known = len(case.hypotheses)
        before(case, progress)
        cases.append((known, len(case.hypotheses)))

    monkeypatch.setattr("lockstep.parity.explaining.diagnosing.explain_steps", kept)
    found = explained(monkeypatch, [strange])
    assert (found.verdict, found.faults) == ("unknown", [])
    assert cases and all(one == other for one, other in cases)
