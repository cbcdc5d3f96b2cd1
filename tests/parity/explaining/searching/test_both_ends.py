"""Bugs on both sides of the sum behind attention, searched from both ends of a layer."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from lockstep.parity.explaining.searching import both_ends as module
from lockstep.parity.explaining.searching.both_ends import BothEnds, joined
from lockstep.parity.explaining.searching.few_tokens import FewTokens
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, hypotheses, rewritten
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Call, Evaluator, Tensor
from lockstep.parity.noise import ways
from lockstep.reference.precision import dtype_named
from tests.parity.explaining.ports import graph_of, is_of, model_of, rewrite_of
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

MODEL, LAYER = "models/untied_float32", "model.layers.0"
TOKENS = np.arange(20)
SOME = (  # that are looked through, beside these
    "act-silu-vs-gelu", "attn-scale-missing", "layernorm-for-rmsnorm", "mask-causal-missing",
    "norm-plus-one-twice", "residual-missing", "rope-sign-flipped", "v-taken-from-k",
)  # fmt: skip
BEHIND = "swiglu-gate-up-swapped[in the product]"
BUGS = [
    "mask-polarity-inverted", "attn-scale-twice", "rope-applied-to-v",
    "norm-applied-twice", BEHIND,
]  # fmt: skip


def few_of(bugs: Sequence[str], dtype: str = "float32") -> FewTokens:
    """Return the tokens of the first of a port's layers, whose MLPs say little."""
    model, graph, kind = model_of(MODEL), graph_of(MODEL), dtype_named(dtype)
    read = Tensors(model.checkpoint)

    def quiet(ref: Tensor) -> np.ndarray:
        return read(ref) * np.float32(0.1 if "down_proj" in ref.name else 1.0)

    calls: dict[int, Call] = {}
    for call in graph.calls:
        for rewrite in map(rewrite_of, bugs):
            wrong = rewrite(calls.get(call.number, call), graph)
            calls |= {} if wrong is None else {call.number: wrong}
    run = Evaluator(graph, ways(kind)[1][0], kind, {}, quiet)
    taps = {tap: number for tap, number in graph.taps.items() if is_of("layers", tap)}
    values = {number: run.target(number, calls) for number in taps.values()}
    trial = Trial(graph, model.ops, kind, values, quiet)
    return FewTokens(trial, graph.piece(graph.taps[LAYER], values), TOKENS)


def atoms_of(few: FewTokens) -> list[Atom]:
    here = frozenset(few.piece.calls)
    some = [fault for fault in catalogue() if fault.id in {*SOME, *named(BUGS)}]
    every = hypotheses(some, few.trial.graph)
    return [Atom(one, one.calls & here) for one in every if one.calls & here]


def named(some: Iterable[str]) -> set[str]:
    return {one.partition("[")[0] for one in some}


def ids(atoms: Iterable[Atom]) -> set[str]:
    return {atom.hypothesis.id for atom in atoms}


@long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bugs_on_both_sides_are_found_where_no_token_shows_few_of_them(dtype: str):
    """By hand: five bugs, among them a mask that lets every token see later ones."""
    few = few_of(BUGS, dtype)
    found = BothEnds(few, atoms_of(few)).sets()
    assert any(ids(atoms) == named(BUGS) for atoms in found)


def test_what_the_sum_must_have_been_leads_to_what_the_port_has():
    """By law: with the bugs behind it, not with right calls."""
    few = few_of(BUGS)
    both = BothEnds(few, [])
    wrong = [atom for atom in atoms_of(few) if atom.hypothesis.id == BEHIND.partition("[")[0]]
    calls = rewritten(wrong[:1], few.trial.graph)
    assert calls
    value = both.undone(calls)
    assert value is not None and np.isfinite(value).all()
    for some, near in ((calls, True), ({}, False)):
        led = few.continued(some, value[None])
        assert led is not None
        assert np.allclose(led[0], few.port, atol=1e-3 * np.abs(few.port).max()) == near


@long
def test_bugs_are_added_to_those_that_are_known(monkeypatch: pytest.MonkeyPatch):
    """By hand: two bugs before the sum are too few for all of these."""
    monkeypatch.setattr(module, "DEEPEST", 2)
    few = few_of(BUGS)
    atoms = atoms_of(few)
    first = {atom.hypothesis.id: atom for atom in atoms if atom.hypothesis.id in named(BUGS[:2])}
    known = frozenset(first.values())
    assert not any(ids(some) == named(BUGS) for some in BothEnds(few, atoms).sets())
    assert any(ids(some) == named(BUGS) for some in BothEnds(few, atoms, [known]).sets())


def test_a_bug_of_both_sides_is_one():
    """By hand."""
    one, other = (Hypothesis(None, id, "", 0, frozenset([1, 5])) for id in "ab")  # pyright: ignore[reportArgumentType]
    before, behind = frozenset([Atom(one, frozenset([1]))]), frozenset([Atom(one, frozenset([5]))])
    assert joined(before, behind) == {Atom(one, frozenset([1, 5]))}
    more = behind | {Atom(other, frozenset([5]))}
    assert joined(before, more) == {Atom(one, frozenset([1, 5])), Atom(other, frozenset([5]))}
