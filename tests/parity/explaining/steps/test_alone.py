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


def explained(monkeypatch, bugs, level="modules", **options):
    monkeypatch.setattr(test_steps, "rewrite_of", lambda bug: bug)
    dump, _ = decoded(MISTRAL, LENGTHS, bugs, level=level)
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
