"""Sets of bugs that explain the first token, found between the bottlenecks of a layer."""

import warnings
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, hypotheses
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.explaining.searching.segments import (
    Alike,
    Segments,
    States,
    bottlenecks,
    close_to,
    more_in,
    signatures,
)
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import graph_of, model_of, port
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

MODEL = "models/untied_float32"
CLOSE = 6.0  # noises
FAMILIES = ("norm", "attention", "activation")  # that are looked through


@cache
def trial_of(name: str, bugs: Sequence[str], dtype: str) -> Trial:
    model, graph = model_of(name), graph_of(name)
    taps = port(name, bugs, level="layers", dtype=dtype)
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    return Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))


def first_layer(trial: Trial) -> Piece:
    return trial.graph.piece(trial.graph.taps["model.layers.0"], trial.dumped)


def found(bugs: Sequence[str]) -> list[set[str]]:
    """Return the ids of the sets that are found in the first layer of a port with some bugs."""
    trial = trial_of(MODEL, tuple(bugs), "float32")
    piece = first_layer(trial)
    here = frozenset(piece.calls)
    some = [fault for fault in catalogue() if fault.family in FAMILIES]
    atoms = [
        Atom(one, one.calls & here)
        for one in hypotheses(some, trial.graph) if one.calls & here
    ]  # fmt: skip
    search = Search(trial, piece, atoms)
    shown = [atom for atom in atoms if search.shows(atom, 0, 1)]
    sets = Segments(trial, piece, shown).sets(CLOSE)
    return [{atom.hypothesis.id for atom in atoms} for atoms in sets]


@pytest.mark.parametrize("name", [MODEL, "gemma4/sparse"])
def test_behind_a_bottleneck_nothing_needs_what_lies_before_it(name: str):
    """By law: a layer is computed from each of them, and from masks and angles, alone."""
    trial = trial_of(name, (), "float32")
    piece = first_layer(trial)
    cuts = bottlenecks(piece, trial.graph, trial.dumped)
    assert cuts[-1] == piece.target and trial.graph.taps["model.layers.0.residual"] in cuts
    fixed = ("causal_mask", "rope_frequencies")
    for cut in cuts:
        behind = trial.graph.piece(piece.target, {*trial.dumped, cut} - {piece.target}).calls
        needed = {n for n in behind if trial.graph.calls[n].op not in fixed}
        assert cut == piece.target or min(needed) > cut


@long
def test_bugs_on_both_sides_are_found_where_no_one_of_them_makes_anything_better():
    """By witness: three bugs of norms, each before the attention and before the MLP."""
    bugs = ["norm-plus-one-twice", "norm-parallel-merge-wrong[of two halves]", "norm-applied-twice"]
    assert found(bugs)[0] == {one.partition("[")[0] for one in bugs}


@long
def test_one_bug_on_each_side():
    bugs = {"v-taken-from-k", "act-silu-vs-gelu"}
    named = ["v-taken-from-k", "act-silu-vs-gelu[gelu (tanh) for silu]"]
    assert bugs in found(named)


def test_values_are_one_that_differ_in_their_last_digits_alone():
    """By hand."""
    one = np.array([1.0, -2.0, 0.0])
    same, near, far, turned = signatures(np.stack([one, one * (1 + 1e-12), one * 1.001, one[::-1]]))
    assert same == near and len({same, far, turned}) == 3
    assert signatures(np.stack([one])[:0]) == []


def test_a_bug_that_is_there_already_is_none_more():
    """By hand: of three sets one holds the bug, and one what does the same."""
    here = frozenset([1])
    one, like, other = (Atom(Hypothesis(None, id, "", 0, here), here) for id in "abc")  # pyright: ignore[reportArgumentType]
    sets = [frozenset([one]), frozenset([like, other]), frozenset([other])]
    states = States(np.zeros((3, 1)), sets, None)  # pyright: ignore[reportArgumentType]
    assert more_in(states, [Alike([one, like])]).tolist() == [0, 0, 1]
    assert more_in(states, [Alike([one, like]), Alike([other])]).tolist() == [1, 0, 1]
    assert more_in(states, []).tolist() == [0, 0, 0]


def test_two_parts_of_a_bug_are_one_more():
    """By hand: of a set that holds none of it, and of one that holds it."""
    one = Hypothesis(None, "a", "", 0, frozenset([1, 2]))  # pyright: ignore[reportArgumentType]
    parts = [Alike([Atom(one, frozenset([number]))]) for number in (1, 2)]
    sets = [frozenset(), frozenset([parts[0].usual])]
    states = States(np.zeros((2, 1)), sets, None)  # pyright: ignore[reportArgumentType]
    assert more_in(states, parts).tolist() == [1, 0]


def test_values_that_cannot_be_squared_are_compared_silently():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert close_to(np.ones((2, 3)), np.full(3, 1e300), 0.1).tolist() == []


def test_numbers_without_bound_are_near_to_nothing():
    """By hand: of their own size, they are as far from a value as from nothing."""
    rows = np.array([[1e200, -1e200], [np.inf, 1.0], [1.0, 2.0]])
    assert close_to(rows, np.array([1.0, 2.001]), 0.1).tolist() == [2]
