"""One bug takes the place of several of the same calls, and another one that of its equal there."""

from collections.abc import Sequence

import numpy as np
import pytest

from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, hypotheses, rewritten
from lockstep.parity.explaining.searching.merged import merged
from lockstep.parity.explaining.searching.search import Attempt, Search
from lockstep.parity.explaining.searching.siblings import with_siblings
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import explained, graph_of, model_of, port

NAME = "models/untied_float32"
MISSING = ("mask-causal-missing", "nothing is masked")
TINY = ("mask-sentinel-too-small", "raised by the smallest positive number")
ADDED = ("mask-bool-added", "")
TWICE = ("kv-not-reset-between-prompts", "the same prompt before")
FEWER = (ADDED, ("kv-cursor-not-advanced", ""), ("mask-causal-off-by-one", "not itself"))
OVER_HEADS = ("softmax-wrong-axis", "over heads")
Key = tuple[str, str]


def atom(id: str, *calls: int) -> Atom:
    here = frozenset(calls)
    return Atom(Hypothesis(None, id, "", 0, here), here)  # pyright: ignore[reportArgumentType]


def search_of(
    target: str,
    bugs: Sequence[Key],
    faults: Sequence[Key] | None = None,
    level: str = "modules",
    dtype: str = "float32",
) -> tuple[Search, dict[Key, Atom]]:
    """Return the search over a piece of a port with some bugs, and what may be there by its key."""
    model, graph = model_of(NAME), graph_of(NAME)
    taps = port(NAME, [f"{id}[{variant}]" for id, variant in bugs], level=level, dtype=dtype)
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(dtype), values, Tensors(model.checkpoint))
    piece = graph.piece(graph.taps[target], values)
    every = hypotheses(catalogue(), graph)
    here = {
        (one.id, one.variant): Atom(one, calls) for one in every
        if (calls := one.calls & frozenset(piece.calls))
        and (faults is None or (one.id, one.variant) in faults)
    }  # fmt: skip
    return Search(trial, piece, [*here.values()]), here


def named(found: frozenset[Atom]) -> set[Key]:
    return {(one.hypothesis.id, one.hypothesis.variant) for one in found}


def test_one_takes_the_place_of_several_of_its_calls_of_most_first():
    """By hand: before that of all that lie in its calls, if these are all of them; then that of
    two, if one of them is in its calls; nothing of what is in the set.
    """
    one, two, three, apart, new = (
        atom("one", 1), atom("two", 1), atom("three", 1), atom("apart", 2), atom("new", 1),
    )  # fmt: skip
    others = [one, new, atom("wider", 1, 2), atom("too wide", 1, 2, 3)]
    found = [{bug.hypothesis.id for bug in some}
             for some in merged(frozenset([one, two, three, apart]), others)]  # fmt: skip
    assert found[:2] == [{"wider"}, {"apart", "new"}]
    assert sorted(map(sorted, found[2:5])) == [
        ["apart", "new", "one"], ["apart", "new", "three"], ["apart", "new", "two"],
    ]  # fmt: skip
    assert sorted(map(sorted, found[5:])) == [
        ["new", "one", "three"], ["new", "one", "two"], ["new", "three", "two"],
    ]  # fmt: skip


def test_masks_that_hide_all_and_then_nothing_are_a_mask_that_is_missing():
    """By law: where nothing is seen, a mask of 0 and 1 that is added hides nothing."""
    search, here = search_of("model.layers.0.self_attn.o_proj", [MISSING])
    three = frozenset(here[key] for key in FEWER)
    assert search.settles(three)
    assert search.needed(three) == three
    assert named(search.fewest(three)) == {MISSING}
    tried: list[Attempt] = [lambda starts, candidates: [three]]
    search.attempts = lambda ways, candidates: ((one, 1, ways) for one in tried)
    assert [*map(named, search.attempted([[frozenset()]], []))] == [{MISSING}]


@pytest.mark.parametrize("beside", [True, False])
def test_beside_a_softmax_over_heads_masks_that_hide_nothing_are_alike(beside: bool):
    """By law: what raises a key in all heads raises its weight in none. Alone they differ."""
    bugs = [MISSING, OVER_HEADS] if beside else [MISSING]
    faults = [MISSING, TINY, ADDED, TWICE, OVER_HEADS]
    search, here = search_of("model.layers.0.self_attn.o_proj", bugs, faults)
    found = with_siblings(search, [frozenset(here[key] for key in bugs)], search.atoms)
    alike = {TINY, ADDED, TWICE} if beside else {TINY}
    assert set().union(*map(named, found)) - {OVER_HEADS} == {MISSING, *alike}


def test_what_hardly_shows_alone_is_tried_beside_others_where_few_bugs_can_be():
    """By law: a row that is divided by its largest number is small beside any epsilon."""
    eps = ("rms-eps-wrong", "eps = 1e-05")
    bugs = [("norm-plus-one-twice", ""), ("norm-eps-inflated-by-rescale", ""), eps]
    search, here = search_of("model.norm", bugs)
    graph, values = search.trial.graph, dict(search.trial.dumped)
    values[graph.taps["model.layers.1"]] *= 40  # so that a right norm has hardly any epsilon
    port = Evaluator(graph, ways(np.dtype(np.float32))[1][0], np.dtype(np.float32), values,
                     search.trial.read)  # fmt: skip
    calls = rewritten([here[key] for key in bugs], graph)
    values[search.piece.target] = port.target(search.piece.target, calls)
    search = Search(search.trial.over(values), search.piece, search.atoms)
    assert search.moves(here[eps]) and not search.possible(here[eps])
    (found,) = search.explanations([], [], deep=True)
    assert named(found.atoms) == {*bugs}


@pytest.mark.parametrize("variant", ["over queries", "over queries, masked after"])
def test_which_softmax_over_queries_it_is_shows_beside_a_mask_that_hides_a_key(variant):
    """By law: of an inverted mask no query sees the first key."""
    bugs = [f"softmax-wrong-axis[{variant}]", "mask-polarity-inverted"]
    known = [one for one in catalogue() if one.id in ("softmax-wrong-axis", bugs[1])]
    found = explained(NAME, port(NAME, bugs), known)
    assert {one.id: one.variant for one in found.faults} == {
        "softmax-wrong-axis": variant, bugs[1]: None,
    }  # fmt: skip


def test_beside_another_reading_of_one_bug_one_does_what_several_did():
    """By witness: beside keys that turn too little, cached keys for values are keys that are turned
    rightly; beside queries that turn too far they are the keys as they are.
    """
    late, early = (
        ("rope-query-position-shifted", one) for one in ("queries one late", "keys one early")
    )
    cached, bare = (
        ("v-taken-from-k", one) for one in ("keys as they are cached", "keys before their turn")
    )
    turned = ("rope-applied-to-v", "as keys should turn")
    faults = [late, early, cached, bare, turned]
    search, here = search_of("model.layers.1.self_attn.o_proj", [late, cached], faults)
    three = frozenset(here[key] for key in (early, bare, turned))
    assert search.settles(three)
    assert search.fewest(three) == three
    found = with_siblings(search, [three], search.atoms)
    assert [*map(named, found)] == [{late, cached}]


def test_short_heads_whose_scores_nobody_scales_are_scores_scaled_twice():
    """By hand: each head is too short by the root of its width, so scores are by the width. What
    an epsilon does is less than float16 rounds.
    """
    unscaled, short = ("attn-scale-missing", ""), ("l2norm-vs-rmsnorm", "")
    search, here = search_of(
        "model.layers.0", [("attn-scale-twice", "")], level="layers", dtype="float16"
    )
    two = frozenset([here[unscaled], here[short]])
    assert search.settles(two)
    assert named(search.fewest(two)) == {("attn-scale-twice", "")}
