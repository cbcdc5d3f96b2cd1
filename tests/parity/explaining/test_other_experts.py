"""Dumps of some tokens behind routers: other tokens may have gone to other experts. By law."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining import diagnosing
from lockstep.parity.explaining.excerpts import text
from lockstep.parity.explaining.routing import flips
from tests.parity.explaining import ports
from tests.parity.explaining.ports import some_of
from tests.sampled import sampled

long = sampled(3)  # of the proofs below that take seconds each

NAME = "gemma4/sparse"


def explained(bugs=(), **options):
    return explain(ports.model_of(NAME), some_of(NAME, bugs, **options), faults=[])


def notes(found):
    return [line for line in found.conventions if "not decided" in line]


SCALED = {"bugs": ["attn-scale-should-be-one"], "where": lambda call: call.layer == 1}


def test_what_is_off_behind_a_router_is_not_clean():
    found = explained(**SCALED)
    assert found.verdict == "unknown"
    assert [one.tap for one in found.unexplained] == ["model.layers.1.self_attn.o_proj"]
    assert found.unexplained[0].shape.endswith(text.DOUBT)


def one_near(monkeypatch, near):
    """Let one token's experts be chosen by rounding alone."""

    def of_one(centre, spread, per_token):
        return np.broadcast_to(np.arange(centre.shape[-2]) == near, centre.shape[:-1])

    monkeypatch.setattr(flips, "near_choice", of_one)


@long
@pytest.mark.parametrize(("near", "verdict"), [(2, "clean"), (10, "unknown"), (19, "unknown")])
def test_what_experts_of_other_tokens_may_have_made_is_not_judged(monkeypatch, near, verdict):
    """By law: of the tokens 5, 17, 18 and 19 all look at 2; 5 does not look at 10. 19 is known."""
    one_near(monkeypatch, near)
    found = explained(**SCALED)
    assert found.verdict == verdict
    assert [one.shape.endswith(text.DOUBT) for one in found.unexplained] == [True] * (near > 2)
    said = "1 tap is not decided, such as model.layers.1.self_attn.o_proj: attention takes what"
    assert len(notes(found)) == (near == 2) and all(said in line for line in notes(found))
    assert found.not_judged == ["model.layers.1.self_attn.o_proj"] * (near == 2)


def turned_expert(call, graph):
    """Send token 2 of the first layer to the next expert in the place of the last chosen."""
    if (call.op, call.layer) != ("top_k_routing", 0):
        return None

    def wrong(ops, logits, *, per_token, normalize):
        found = ops.top_k_routing(logits, per_token=per_token, normalize=normalize)
        order = np.argsort(-logits[0, 2])[[per_token, per_token - 1]]
        found[0, 2, order] = found[0, 2, order[::-1]]
        return found

    return call.replaced(wrong)


@long
def test_an_expert_that_was_turned_is_not_judged(monkeypatch):
    """Of a token that is not in the dump; where no choice was near, it is a bug."""
    found = explained([turned_expert])
    assert found.verdict == "unknown"
    one_near(monkeypatch, 2)
    found = explained([turned_expert])
    assert found.verdict == "clean" and notes(found)


@long
@pytest.mark.parametrize("number", [np.nan, np.inf, 1e6])
def test_what_no_expert_makes_is_not_clean(monkeypatch, number):
    """Whatever a router may have done: no number at all, or larger than any of the whole run."""
    one_near(monkeypatch, 2)
    dump, last = some_of(NAME), "model.layers.1.self_attn.o_proj"
    some = {tap: dump.read(tap) for tap in dump.shapes
            if tap == "model.layers.0" or ".self_attn." in tap}  # fmt: skip
    some[last] = np.full_like(some[last], number)
    dump = replace(dump, shapes={tap: dump.shapes[tap] for tap in some}, read=some.__getitem__)
    found = explain(ports.model_of(NAME), dump, faults=[])
    assert found.verdict == "unknown" and [one.tap for one in found.unexplained] == [last]
    assert found.unexplained[0].shape.endswith(text.DOUBT)


def test_what_loses_its_names_is_looked_at_again(monkeypatch):
    """A rule that is given up leaves open what a router may have made, after the search."""

    def given_up(case, random=()):
        for piece in getattr(case, "doubtful", []):
            case.open.append(piece)
            case.judged[piece.target] = case.trial.judge(piece)
            case.doubtful = []

    one_near(monkeypatch, 2)
    monkeypatch.setattr(diagnosing, "give_up_rules", given_up)
    found = explained(**SCALED)
    assert found.verdict == "clean" and notes(found)


def test_tokens_look_at_others_within_their_window():
    """By hand: of eight tokens the second is one that others look at, with three as far as two."""
    some = np.arange(8)[None] == 1
    for window, last in ((None, 7), (3, 3), (1, 1), (8, 7), (9, 7)):
        assert np.flatnonzero(text.looks_at(some, window)[0]).tolist() == [*range(1, last + 1)]
