"""A port of other weights is said to be one, and not searched for what no bug makes. By hand."""

import re
from collections import Counter

import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import (
    dumped,
    explained,
    fault_of,
    ids,
    model_of,
    port,
    rewrite_of,
    some_of,
)
from tests.parity.faults.planted import loaded
from tests.sampled import sampled

LLAMA = "models/untied_float32"
SAID = "was another checkpoint ported"


def numbers(weight):
    """Return the same numbers each time for one matrix."""
    return np.random.default_rng(weight.size).standard_normal(weight.shape)


def trained(ops, weight):
    """Move every number a little, each by another share of it, as more training does."""
    return weight * (1 + 1e-3 * numbers(weight)).astype(weight.dtype)


def drawn(ops, weight):
    return (numbers(weight) * weight.std()).astype(weight.dtype)


def weights(change):
    """Return a rewrite of every matrix."""

    def rewrite(call, graph):
        return call.with_changed(1, change) if call.op in ("linear", "embedding") else None

    return rewrite


def only(rewrite, layer):
    """Return a rewrite in the calls of one layer; of None, in those of no layer."""
    return lambda call, graph: rewrite(call, graph) if call.layer == layer else None


@pytest.fixture
def deep(monkeypatch):
    """Collect the taps that are searched for several bugs."""
    found = []
    sets = Search.sets

    def noted(search, *given):
        found.append(search.trial.graph.calls[search.piece.target].taps[0])
        return sets(search, *given)

    monkeypatch.setattr(Search, "sets", noted)
    return found


@sampled(0)
@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("change", [trained, drawn])
def test_other_weights_are_said_and_one_layer_is_searched_for_several_bugs(change, level, deep):
    found = explained(LLAMA, port(LLAMA, [weights(change)], level=level))
    (line,) = (one for one in found.conventions if SAID in one)
    assert "matrices that the dump shows alone are not untied_float32's" in line
    assert (found.verdict, ids(found)) == ("unknown", set())
    assert "model.embed_tokens" in {one.tap for one in found.unexplained}
    kinds = Counter(
        re.sub(r"\d+", "N", tap) for tap in deep if "o_proj" in tap or tap[-1].isdigit()
    )
    assert deep and all(count == 1 for count in kinds.values())


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_one_layer_of_other_weights_is_wrong_alone_and_searched(level, deep):
    taps = port(LLAMA, [weights(drawn)], level=level, where=lambda call: call.layer == 1)
    found = explained(LLAMA, taps, faults=())
    assert not any(SAID in one for one in found.conventions)
    assert found.unexplained and all("layers.1" in one.tap for one in found.unexplained)
    assert {one.tap for one in found.unexplained} <= {*deep}


@pytest.mark.parametrize("name", [LLAMA, "models/sliding_bfloat16"])
def test_a_table_and_a_head_alone_are_no_other_weights(name):
    """One table is both where the head is tied."""
    taps = port(name, [only(weights(trained), None)], level="layers")
    found = explained(name, taps, faults=())
    assert not any(SAID in one for one in found.conventions)
    assert found.unexplained and not any("layers" in one.tap for one in found.unexplained)


def test_two_bugs_of_a_layer_are_named_beside_a_table_and_a_head_of_other_weights():
    bugs = {"attn-scale-missing", "rope-sign-flipped"}
    planted = [only(weights(trained), None), *(only(rewrite_of(bug), 1) for bug in bugs)]
    known = [fault for fault in catalogue() if fault.id in bugs]
    found = explained(LLAMA, port(LLAMA, planted, level="layers"), faults=known)
    assert ids(found) == bugs


def test_other_weights_are_said_of_some_tokens_too():
    doubts = []
    dump = some_of(LLAMA, [weights(trained)], level="modules")
    explain(model_of(LLAMA), dump, faults=(), doubt=doubts.append)
    assert any(SAID in line for line in doubts)


def test_a_known_bug_of_every_matrix_is_none_of_other_weights():
    """By hand: each matrix is doubled, and that is the one bug that is known."""
    change = weights(lambda ops, weight: 2 * weight)
    found = explained(LLAMA, port(LLAMA, [change]), faults=[fault_of("doubled", change)])
    assert not any(SAID in one for one in found.conventions)
    assert (ids(found), found.unexplained) == ({"doubled"}, [])


@pytest.mark.parametrize("adapted", [True, False])
def test_where_all_that_is_wrong_has_an_adapter_it_may_be_that(adapted):
    """By hand: the port adds nothing to any matrix, or to none and has other matrices too."""
    model = loaded("adapters/peft_patterns")
    taps = port(LLAMA, [] if adapted else [weights(trained)])
    found = explain(model, dumped(taps, LLAMA), faults=())
    (line,) = (one for one in found.conventions if "matrices that the dump shows alone" in one)
    assert (SAID in line, "each of them has an adapter" in line) == (not adapted, adapted)
