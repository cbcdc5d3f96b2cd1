"""A port of other weights is said to be one, and not searched for what no bug makes. By hand."""

import numpy as np
import pytest

from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.faults import Fault
from tests.parity.explaining.ports import explained, ids, port

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


@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("change", [trained, drawn])
def test_other_weights_are_said_and_layers_not_searched_for_several_bugs(change, level, deep):
    found = explained(LLAMA, port(LLAMA, [weights(change)], level=level))
    (line,) = (one for one in found.conventions if SAID in one)
    assert "matrices that the dump shows alone are not untied_float32's" in line
    assert (found.verdict, ids(found)) == ("unknown", set())
    assert "model.embed_tokens" in {one.tap for one in found.unexplained}
    assert deep and not any(tap.rpartition(".")[2].isdigit() or "o_proj" in tap for tap in deep)


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_one_layer_of_other_weights_is_wrong_alone_and_searched(level, deep):
    taps = port(LLAMA, [weights(drawn)], level=level, where=lambda call: call.layer == 1)
    found = explained(LLAMA, taps, faults=())
    assert not any(SAID in one for one in found.conventions)
    assert found.unexplained and all("layers.1" in one.tap for one in found.unexplained)
    assert {one.tap for one in found.unexplained} <= {*deep}


def test_a_known_bug_of_every_matrix_is_none_of_other_weights():
    """By hand: each matrix is doubled, and that is the one bug that is known."""
    change = weights(lambda ops, weight: 2 * weight)
    words = dict.fromkeys(("wrong", "right", "symptom", "where", "fix"), "doubled")
    known = Fault(id="doubled", **words, evidence=(), variants={"": change})
    found = explained(LLAMA, port(LLAMA, [change]), faults=[known])
    assert not any(SAID in one for one in found.conventions)
    assert (ids(found), found.unexplained) == ({"doubled"}, [])
