"""Sets of bugs computed for a few tokens, and the wide search over them."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining.searching import by_few_tokens, few_tokens, growing
from lockstep.parity.explaining.searching import search as narrow
from lockstep.parity.explaining.searching import wide as module
from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.few_tokens import FewTokens
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, hypotheses, rewritten
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.searching.wide import Wide
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import graph_of, model_of, port
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

MODEL = "models/untied_float32"
LAYER, PROJECTION = "model.layers.0", "model.layers.0.self_attn.o_proj"
ROUTED = "qwen3_moe/separate", "model.layers.1"  # its first layer has no router
TOKENS = np.array([0, 7, 19])
HERE = frozenset([1])
SOME = (
    "mask-polarity-inverted",  # counts the rows of a mask
    "head-merge-without-transpose",  # mixes tokens behind attention
    "softmax-wrong-axis",
    "rope-sign-flipped",
    "gqa-tile-vs-repeat",
    "v-taken-from-k",  # takes what attention does not
    "norm-applied-twice",  # on both sides
    "act-silu-vs-gelu",
)


def layer_of(
    name: str, bugs: Sequence[str] = (), length: int = 20, layer: str = LAYER
) -> tuple[Trial, Piece]:
    """Return the trial of a port's layers, and one of them."""
    model, graph = model_of(name), graph_of(name, length)
    taps = port(name, bugs, level="layers", length=length)
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    return trial, graph.piece(graph.taps[layer], values)


def atoms_of(trial: Trial, piece: Piece, ids: Sequence[str]) -> list[Atom]:
    some = [fault for fault in catalogue() if fault.id in ids]
    here = frozenset(piece.calls)
    every = hypotheses(some, trial.graph)
    return [Atom(one, one.calls & here) for one in every if one.calls & here]


@sampled(1, "gemma4/dense-model.layers.0")
@pytest.mark.parametrize(
    ("name", "tap"),
    [(MODEL, LAYER), ("gemma4/dense", LAYER), (MODEL, PROJECTION), ROUTED],
)
def test_tokens_of_each_pair_of_bugs_are_those_of_the_whole_computation(name: str, tap: str):
    """By law."""
    trial, _ = layer_of(name)
    piece = trial.graph.piece(trial.graph.taps[tap], trial.dumped)
    atoms = atoms_of(trial, piece, SOME)
    few = FewTokens(trial, piece, TOKENS, atoms)
    assert few.spans
    sets = [frozenset(some) for size in (1, 2) for some in combinations(atoms, size)]
    sets = [some for some in sets if rewritten(some, trial.graph) is not None]
    compared = 0
    for some, value in zip(sets, few.values(sets), strict=True):
        calls = rewritten(some, trial.graph)
        whole = trial.centre(None).target(piece.target, calls)[0, TOKENS]
        assert value is not None, some
        np.testing.assert_allclose(value, whole, atol=1e-9 * np.abs(whole).max(), equal_nan=True)
        compared += 1
    assert compared > 40


def test_what_mixes_tokens_is_computed_in_stacks_too(monkeypatch: pytest.MonkeyPatch):
    """By law: of sets with a softmax over the wrong axis none is computed by itself."""
    trial, piece = layer_of(MODEL)
    atoms = atoms_of(trial, piece, ["softmax-wrong-axis", "rope-sign-flipped"])
    alone: list[object] = []
    monkeypatch.setattr(FewTokens, "slowly", lambda few, calls: alone.append(calls))
    few = FewTokens(trial, piece, TOKENS, atoms)
    sets = [frozenset(some) for some in combinations(atoms, 2)]
    sets = [some for some in sets if rewritten(some, trial.graph) is not None]
    values = few.values(sets)
    assert len(values) == 15 and all(value is not None for value in values) and not alone


def test_what_tokens_should_be_is_not_what_the_port_has():
    """By law: the port's own value is in the dump, and a mixture with it is near to anything."""
    trial, piece = layer_of(MODEL, ["attn-scale-twice"])
    few = FewTokens(trial, piece, TOKENS, [])
    right = trial.centre(None).target(piece.target)[0, TOKENS]
    np.testing.assert_array_equal(few.ends, right)
    np.testing.assert_array_equal(few.port, trial.dumped[piece.target][0, TOKENS])
    assert not np.allclose(few.ends, few.port, rtol=1e-4)


def test_a_token_that_becomes_no_number_is_moved():
    """By hand: each token hangs on its own, and the second of what is shaken is no number."""
    right = np.ones((1, 3, 2))
    graph = SimpleNamespace(token_axes={0: (1,)})
    few = SimpleNamespace(trial=SimpleNamespace(graph=graph), right=lambda number: right)
    few.run = lambda span, values, calls: np.where(values[0] == 1, 1.0, np.nan)
    assert FewTokens.own_axis(few, 0, SimpleNamespace(axes={0: None})) == 1  # pyright: ignore[reportArgumentType]


def test_calls_that_agree_alone_agree_together():
    """By law: it is asked of each call once, and not of every set of them."""
    trial, piece = layer_of(MODEL)
    atoms = atoms_of(trial, piece, ["norm-applied-twice", "act-silu-vs-gelu"])
    few = FewTokens(trial, piece, TOKENS, atoms)
    few.values([frozenset([atom]) for atom in atoms])
    asked = len(few.alone)
    few.values([frozenset(some) for some in combinations(atoms, 2)])
    assert len(few.alone) == asked


def test_less_effort_looks_at_fewer_sets(monkeypatch: pytest.MonkeyPatch):
    """By law."""
    monkeypatch.setattr(module, "TOGETHER", 10)
    trial, piece = layer_of(MODEL, ["mask-bool-added", "act-silu-vs-gelu[gelu (tanh) for silu]"])
    atoms = atoms_of(trial, piece, SOME)
    usual, hasty = (Wide.of(trial, piece, atoms, effort) for effort in (1.0, 1e-4))
    for wide in (usual, hasty):
        wide.nearest([frozenset()], 3)
    assert hasty.possible
    assert usual.count > 2 * hasty.count


def test_what_goes_through_attention_twice_is_not_cut_into_tokens():
    """By hand: without the first layer's output, the second needs all of its tokens."""
    trial, _ = layer_of(MODEL)
    del trial.dumped[trial.graph.taps[LAYER]]
    trial.forget()
    piece = trial.graph.piece(trial.graph.taps["model.layers.1"], trial.dumped)
    assert FewTokens(trial, piece, TOKENS).spans == ()


def test_a_mask_that_is_given_stays_one():
    """By hand: rewrites of masks use their bits."""
    graph = graph_of(MODEL)
    number = next(call.number for call in graph.calls if call.op == "causal_mask")
    mask = np.tri(20, dtype=bool)[None, None]
    run = Evaluator(graph, None, np.dtype(np.float64), {number: mask}, lambda tensor: None)
    assert run.port(number).dtype == bool
    assert np.array_equal(run.port(number), mask)


def test_four_bugs_on_both_sides_of_the_residual_where_every_token_sees_all():
    """By witness: no token shows fewer of them than another, and each hides the others."""
    bugs = ["mask-bool-added", "attn-scale-twice", "rope-sign-flipped", "act-silu-vs-gelu"]
    trial, piece = layer_of(MODEL, [*bugs[:3], "act-silu-vs-gelu[gelu (tanh) for silu]"])
    beside = ["norm-applied-twice", "gqa-tile-vs-repeat", "v-taken-from-k", "rope-applied-to-v"]
    atoms = atoms_of(trial, piece, [*bugs, *beside, "mask-polarity-inverted"])
    wide = Wide.of(trial, piece, atoms)
    assert wide.possible
    found = wide.nearest([frozenset()], 5)
    assert {atom.hypothesis.id for atom in found[0]} == {*bugs}


def search_of(bugs: Sequence[str]) -> Search:
    """Return the search over a layer with some bugs, beside every fifth of the catalogue."""
    trial, piece = layer_of(MODEL, bugs)
    ids = {bug.partition("[")[0] for bug in bugs}
    every = atoms_of(trial, piece, [fault.id for fault in catalogue()])
    true = [atom for atom in every if atom.hypothesis.id in ids]
    return Search(trial, piece, [*dict.fromkeys([*true, *every[::5]])])


def found_by(search: Search) -> set[str]:
    found = search.attempted([[frozenset()]], search.atoms)
    return {atom.hypothesis.id for atoms in found for atom in atoms}


@long
def test_five_bugs_that_no_narrow_search_finds(monkeypatch: pytest.MonkeyPatch):
    """By witness: without the wide search, one that goes on from two sets finds nothing."""
    monkeypatch.setattr(growing, "BEAM", 2)
    bugs = ["mask-bool-added", "v-taken-from-k", "norm-applied-twice", "rope-sign-flipped"]
    search = search_of([*bugs, "act-silu-vs-gelu[gelu (tanh) for silu]"])
    assert found_by(search) == {*bugs, "act-silu-vs-gelu"}


@long
def test_one_more_bug_beside_one_that_shows_the_first_token_all():
    """By witness: that token hides the scale of scores, unless it sees later tokens."""
    bugs = ["mask-bool-added", "attn-scale-twice"]
    search = search_of(bugs)
    search.brief = True  # so that it is found from what like pieces have, or not at all
    (mask,) = (one for one in search.atoms if one.hypothesis.id == bugs[0])
    found = search.explanations([], [], [search.alone(mask)], deep=True)
    assert {atom.hypothesis.id for one in found for atom in one.atoms} == {*bugs}


def test_a_wide_search_begins_from_both_ends(monkeypatch: pytest.MonkeyPatch):
    """By hand: with the bugs that alone show so much of what is wrong."""
    bugs = ["mask-bool-added", "attn-scale-twice"]
    search = search_of(bugs)
    known = {atom.hypothesis.id: atom for atom in search.atoms if atom.hypothesis.id in bugs}
    asked: list[Sequence[Atom]] = []

    def of(trial: Trial, piece: Piece, candidates: Sequence[Atom], *rest: object):
        asked.append(candidates)
        return SimpleNamespace(sets=lambda: [frozenset(known.values())])

    monkeypatch.setattr(by_few_tokens.BothEnds, "of", of)
    assert search.near([frozenset()], search.atoms)[0] == frozenset(known.values())
    monkeypatch.setattr(by_few_tokens, "SMALLER", 0.4)
    search.near([frozenset()], search.atoms)
    least = 0.4 * min(search.fit(frozenset()))
    assert asked[1] == [one for one in asked[0] if search.effect(one, 0, None) >= least] != asked[0]


@long
def test_what_comes_near_goes_on_from_what_leaves_nothing(monkeypatch: pytest.MonkeyPatch):
    """By law: both together look at no set twice, and at no more than one may."""
    most, at_once = 1000, 100
    for name, value in (("MOST", most), ("LEAST", 1), ("TOGETHER", at_once)):
        monkeypatch.setattr(module, name, value)
    search = search_of([])
    size = search.trial.dumped[search.piece.target].shape
    search.trial.dumped[search.piece.target] = np.random.default_rng(5).normal(size=size)
    search.trial.forget()
    asked: list[Atoms] = []
    values = FewTokens.values

    def asking(self: FewTokens, some: Sequence[Atoms]) -> list[np.ndarray | None]:
        found = values(self, some)
        asked.extend(one for one, value in zip(some, found, strict=True) if value is not None)
        return found

    monkeypatch.setattr(FewTokens, "values", asking)
    assert search.sure([frozenset()], search.atoms) == []
    assert (
        search.looked is not None
        and search.looked.count > module.BEFORE * most >= len(asked) - at_once
    )
    before = len(asked)
    assert search.near([frozenset()], search.atoms) == []
    assert not {*asked[:before]} & {*asked[before:]}
    assert before < len(asked) <= most + at_once


def test_a_bug_that_stood_for_others_is_left_out_again(monkeypatch: pytest.MonkeyPatch):
    """By hand: alone it comes nearest; beside the two that it stood for it is one too many."""
    decoy, one, two = (Atom(Hypothesis(None, id, "", 0, HERE), HERE) for id in "xab")  # pyright: ignore[reportArgumentType]
    left = {
        frozenset([decoy]): 0.5, frozenset([decoy, one]): 0.4, frozenset([decoy, one, two]): 0.08,
        frozenset([one, two]): 0.0,
    }  # fmt: skip

    def measure(self: Wide, some: Iterable[Atoms]) -> None:
        self.errors |= {atoms: (left.get(atoms, 0.9),) * 4 for atoms in some}

    monkeypatch.setattr(Wide, "measure", measure)
    monkeypatch.setattr(Wide, "enough", 0.0)
    monkeypatch.setattr(Wide, "most", 1000)
    monkeypatch.setattr(module, "BEAM", 1)
    wide = Wide(SimpleNamespace(), [decoy, one, two])  # pyright: ignore[reportArgumentType]
    for deepest in (3, 4):  # at the end as on the way
        assert wide.nearest([frozenset()], deepest)[0] == frozenset([one, two])
        wide.errors.clear()


def test_a_wide_search_that_gets_no_nearer_ends(monkeypatch: pytest.MonkeyPatch):
    """By hand: no measure counts that is taken after a factor."""
    atoms = [Atom(Hypothesis(None, id, "", 0, HERE), HERE) for id in "abcdefghi"]  # pyright: ignore[reportArgumentType]

    def measure(self: Wide, some: Iterable[Atoms]) -> None:
        self.errors |= {one: (0.5, 0.5 ** len(one), 0.5 ** len(one), 0.4) for one in some}

    monkeypatch.setattr(Wide, "measure", measure)
    monkeypatch.setattr(Wide, "enough", 0.0)
    monkeypatch.setattr(Wide, "most", 1000)
    wide = Wide(SimpleNamespace(), atoms)  # pyright: ignore[reportArgumentType]
    wide.nearest([frozenset()], 8)
    assert max(map(len, wide.errors)) == 3


@long
def test_where_nothing_comes_near_the_search_goes_on_without_it(monkeypatch: pytest.MonkeyPatch):
    """By witness: five bugs that the narrow search finds."""
    bugs = ["mask-bool-added", "attn-scale-twice", "rope-sign-flipped", "gqa-tile-vs-repeat"]
    search = search_of([*bugs, "act-silu-vs-gelu[gelu (tanh) for silu]"])
    monkeypatch.setattr(module, "MOST", 10)
    monkeypatch.setattr(module, "LEAST", 10)
    assert search.staged([frozenset()], search.atoms) == []
    assert search.near([frozenset()], search.atoms) == []
    assert found_by(search) == {*bugs, "act-silu-vs-gelu"}


@long
def test_behind_a_router_each_way_is_searched_by_itself_too():
    """By hand: one of a few tokens may have been sent elsewhere there."""
    ids = ["mask-bool-added", "rope-sign-flipped"]
    for name, alone in (("gemma4/sparse", True), (MODEL, False)):
        trial, piece = layer_of(name, ids)
        search = Search(trial, piece, atoms_of(trial, piece, ids))
        ways = [[frozenset([search.atoms[0]])], [frozenset[Atom]()]]
        tried = {attempt: tries for attempt, _, tries in search.attempts(ways, search.atoms)}
        assert (tried.get(search.at_once) == ways) == alone
        assert len(tried.get(search.from_near, [])) == 1


@long
def test_fewer_sets_are_tried_behind_routers_and_where_a_like_piece_is_explained():
    """By hand: then only from what explains that one."""
    ids = ["mask-bool-added", "rope-sign-flipped"]
    for name, first in (("gemma4/sparse", 1), (MODEL, narrow.ALL_TOKENS)):
        trial, piece = layer_of(name, ids)
        search = Search(trial, piece, atoms_of(trial, piece, ids))
        search.near = lambda known, visible: []
        ways = [[frozenset([search.atoms[0]])], [frozenset[Atom]()]]
        *_, (_, share, tries) = search.attempts(ways, search.atoms)
        assert (share, tries) == (first, ways)
        search.alike_known = True
        tried = {
            attempt: (share, tries) for attempt, share, tries in search.attempts(ways, search.atoms)
        }
        assert tried[search.at_once] == tried[search.staged] == (1, ways[:1])


def test_a_prompt_of_one_token_is_left():
    """By hand: it has no second token, whose own part of a value could be told."""
    trial, piece = layer_of(MODEL, length=1)
    trial.dumped[piece.target] += np.random.default_rng(5).normal(size=(1, 1, 1))
    trial.forget()
    atoms = atoms_of(trial, piece, [fault.id for fault in catalogue()])
    assert not Wide.of(trial, piece, atoms).possible
    assert Search(trial, piece, atoms[:30]).explanations([], [], deep=True) == []


def test_a_set_that_stays_far_is_not_handed_on():
    """By hand: none of two wrong guesses is near."""
    trial, piece = layer_of(MODEL, ["mask-bool-added", "v-taken-from-k"])
    atoms = atoms_of(trial, piece, ["mask-polarity-inverted", "rope-sign-flipped"])
    assert Wide.of(trial, piece, atoms).nearest([frozenset()], 3) == []


def test_a_model_of_real_size_is_left(monkeypatch: pytest.MonkeyPatch):
    trial, piece = layer_of(MODEL)
    monkeypatch.setattr(module, "WORK", 1e6)
    assert not Wide.of(trial, piece, []).possible


@pytest.mark.parametrize(("name", "layer"), [(MODEL, LAYER), ROUTED])
def test_what_leaves_nothing_of_a_few_tokens_needs_no_stages(
    name: str, layer: str, monkeypatch: pytest.MonkeyPatch
):
    """By witness: behind a router too, where each set that is computed whole is dear."""
    bugs = ["mask-bool-added", "attn-scale-twice", "rope-applied-to-v"]
    trial, piece = layer_of(name, bugs, layer=layer)
    assert bool(trial.routers_of(piece)) == (name != MODEL)
    beside = ["norm-applied-twice", "gqa-tile-vs-repeat", "v-taken-from-k"]
    search = Search(trial, piece, atoms_of(trial, piece, [*bugs, *beside]))
    monkeypatch.setattr(Search, "staged", lambda *_: pytest.fail("not needed"))
    assert found_by(search) == {*bugs}


def test_a_layer_with_a_router_is_left_where_something_stays(monkeypatch: pytest.MonkeyPatch):
    """By hand: what comes near may be so by the experts that were chosen."""
    name, layer = ROUTED
    trial, piece = layer_of(name, ["mask-bool-added", "attn-scale-twice"], layer=layer)
    search = Search(trial, piece, atoms_of(trial, piece, ["mask-bool-added"]))
    assert search.near([frozenset()], search.atoms) == []
    asked, sure = [], search.sure
    monkeypatch.setattr(search, "sure", lambda *given: asked.append(given) or sure(*given))
    assert search.from_sure([frozenset()], search.atoms) == []
    assert len(asked) == 1


def test_values_that_are_no_numbers_are_like_each_other_alone():
    """By hand; what a broken port makes of all tokens may be none."""
    none = np.full((2, 3), np.nan, np.float32)
    assert few_tokens.same(none, none) and not few_tokens.same(none, np.zeros_like(none))
    assert few_tokens.same(np.ones(3), np.array([1, 1, 1 + 1e-12]))
