"""What the first tokens say of single bugs: none that is there is lost, most others are dropped."""

import numpy as np
import pytest

from lockstep.parity.explaining.searching.atom_sets import acausal
from lockstep.parity.explaining.searching.beginnings import (
    EARLY,
    FEWER,
    may_be_alone,
    speaks,
)
from lockstep.parity.explaining.searching.hypothesis import (
    atoms_in,
    hypotheses,
    in_one_module,
)
from lockstep.parity.explaining.searching.reach import shown_by_first_token
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import graph_of, model_of, port

NAME, LENGTH = "llama/mistral_window", 40
BUGS = [
    "mask-swa-off-by-one",
    "gguf-dims-reversed",
    "mask-causal-missing",
    "act-silu-vs-gelu[gelu (tanh) for silu]",
]


def search_over(taps, name=NAME, length=LENGTH, target="model.layers.1") -> Search:
    """Return the search over the output of the second layer, computed from that of the first."""
    graph, model = graph_of(name, length), model_of(name)
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    piece = graph.piece(graph.taps[target], values)
    early = shown_by_first_token(trial, piece)
    atoms = [
        atom for one in hypotheses(catalogue(), graph)
        for atom in atoms_in(one, piece.calls, early, graph)
    ]  # fmt: skip
    narrow = [
        atom for one in hypotheses(catalogue(), graph)
        for atom in in_one_module(one, piece.calls, graph)
    ]  # fmt: skip
    return Search(trial, piece, atoms, narrow=narrow)


def in_second_layer(call) -> bool:
    return call.layer == 1


@pytest.mark.parametrize("bug", BUGS)
def test_what_explains_the_piece_alone_is_not_lost(bug):
    """By search: each bug that leaves nothing of all tokens but noise, whenever it shows."""
    search = search_over(port(NAME, [bug], level="layers", where=in_second_layer, length=LENGTH))
    kept = may_be_alone(search, search.atoms)
    computed = {atoms for atoms, rows in search.looks if rows is None and atoms}
    alone = [atom for atom in search.atoms if search.settles(frozenset([atom]))]
    assert speaks(search) and alone and {*alone} <= {*kept}
    assert len(kept) < len(search.atoms) / 3
    assert not computed


@pytest.mark.parametrize("bug", BUGS)
def test_a_shallow_search_names_it_too(bug):
    """By witness: with all that cannot be told from it, as a deep search does."""
    taps = port(NAME, [bug], level="layers", where=in_second_layer, length=LENGTH)
    found = [
        {one.atoms for one in search_over(taps).explanations([], [], deep=deep)}
        for deep in (False, True)
    ]
    assert found[0] == found[1] != set()


def test_what_nothing_known_explains_is_hardly_computed_whole():
    """By hand: numbers of no bug. A bug that lets a token see later ones is, whatever it leaves."""
    taps = port(NAME, level="layers", length=LENGTH)
    rng = np.random.default_rng(0)
    taps["model.layers.1"] = rng.standard_normal(taps["model.layers.1"].shape).astype(np.float32)
    search = search_over(taps)
    assert search.explanations([], [], deep=False) == []
    whole = {atoms for atoms, rows in search.looks if rows is None and atoms}
    assert all(acausal(atoms) for atoms in whole) and len(whole) < len(search.atoms) / 10


def test_a_bug_in_one_module_of_a_large_piece_is_not_lost():
    """By witness: from the logits alone, in the second layer's q_proj."""

    def in_q_proj(call):
        return call.layer == 1 and call.place.endswith("q_proj")

    bugs, name = ["gguf-dims-reversed"], "llama/biased_llama3"
    taps = port(name, bugs, level="logits", where=in_q_proj, length=LENGTH)
    search = search_over(taps, name, target="logits")
    (found,) = search.explanations([], [], deep=False)
    (atom,) = found.atoms
    assert atom.hypothesis.id == bugs[0] and atom in search.narrow
    assert not search.spent and search.budget.limit > 0
    wide = search.budget.used
    assert wide < len(search.atoms)  # looks of one bug each do not count as its work


@pytest.mark.parametrize("name", [NAME, "llama/llama_longrope", "gemma4/dense"])
def test_the_first_tokens_are_as_in_the_whole(name):
    """By law: what no later token changes is the same if these are not computed."""
    search = search_over(port(name, level="layers", length=LENGTH), name)
    sets = [some for some in map(search.alone, search.atoms) if not acausal(some)]
    pairs = [(search.look(some, EARLY), search.look(some, None)) for some in sets]
    looks = [(early, whole) for early, whole in pairs if early and whole]
    assert len(looks) > 100
    for early, whole in looks:
        np.testing.assert_allclose(early.wrong, whole.wrong[:EARLY], rtol=1e-9)


@pytest.mark.parametrize("length", [FEWER * EARLY - 1, FEWER * EARLY])
def test_few_tokens_are_computed_at_once(length):
    search = search_over(port(NAME, level="layers", length=length), length=length)
    assert speaks(search) == (length == FEWER * EARLY)


def test_first_tokens_without_numbers_say_nothing():
    taps = port(NAME, level="layers", length=LENGTH)
    taps["model.layers.1"][0, 3, 5] = np.nan
    assert not speaks(search_over(taps))
