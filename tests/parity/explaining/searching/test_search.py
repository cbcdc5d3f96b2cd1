"""The search for sets of bugs: what it goes on with, and where it starts."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.explaining.searching import by_stages
from lockstep.parity.explaining.searching.hypothesis import Atom, hypotheses, rewritten
from lockstep.parity.explaining.searching.known import as_taught
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.explaining.searching.siblings import with_siblings
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator, record
from lockstep.reference.precision import dtype_named
from tests.parity.explaining.ports import graph_of, model_of, port
from tests.parity.explaining.searching.made_up import sets


def test_bugs_compose_in_one_call_and_two_variants_of_one_exclude_each_other(plain: Path):
    """By law: the order in which they are given changes nothing."""
    one = record(reference.load(plain), np.array([[1, 2, 3]]))
    some = {(h.id, h.variant): h for h in hypotheses(catalogue(), one)}
    scale = some["attn-scale-twice", ""]
    missing = some["attn-scale-missing", ""]
    number = min(scale.calls & missing.calls)
    here = [Atom(bug, frozenset([number])) for bug in (scale, missing)]
    both, turned = rewritten(here, one), rewritten(here[::-1], one)
    assert both == turned
    variants = [h for h in some.values() if h.id == "act-silu-vs-gelu"][:2]
    at = min(variants[0].calls & variants[1].calls)
    assert rewritten([Atom(bug, frozenset([at])) for bug in variants], one) is None


def test_what_does_a_call_again_is_the_same_object_each_time():
    """By law: with the bugs of that call it is another one, with a bug elsewhere it is not."""
    graph = graph_of("models/untied_float32")
    some = {(h.id, h.variant): h for h in hypotheses(catalogue(), graph)}
    turned, flipped, act = (
        Atom(one, one.calls)
        for one in (
            some["rope-applied-to-v", "by the tables of the keys"],
            some["rope-sign-flipped", ""],
            some["act-silu-vs-gelu", "gelu (tanh) for silu"],
        )
    )
    alone, both = rewritten([turned], graph), rewritten([turned, flipped], graph)
    third = rewritten([act, flipped, turned], graph)
    assert alone and both and third
    kept = len(graph.rewritten)
    for number in turned.calls:
        assert both[number] is not alone[number]
        assert both[number] is third[number]
    for before, atoms in ((alone, [turned]), (both, [flipped, turned])):
        now = rewritten(atoms, graph)
        assert now and all(now[number] is before[number] for number in before)
    assert len(graph.rewritten) == kept


def test_what_is_done_again_has_a_bug_that_acts_on_both_calls():
    """By law: scores of what was not normalised are those without the norm, in swapped layers."""
    name = "gemma4/sparse"
    model, graph = model_of(name), graph_of(name)
    proj = graph.taps["model.layers.0.router.proj"]
    some = {(h.id, h.variant): h for h in hypotheses(catalogue(), graph)}
    swapped = some["layers-swapped", "layer i has i + 1"]
    aside = some["norm-wrong-side-of-projection", "of the router, its scores dumped before"]
    without = some["norm-result-discarded", ""]
    norm = frozenset({graph.taps["model.layers.0.router.norm"]}) & without.calls
    run = Evaluator(graph, model.ops, np.dtype(np.float64), {}, Tensors(model.checkpoint))
    one, other, right = (
        run.target(proj, rewritten([Atom(swapped, swapped.calls), *more], graph))
        for more in ([Atom(aside, frozenset({proj}))], [Atom(without, norm)], [])
    )
    np.testing.assert_allclose(one, other, rtol=1e-9)
    assert norm and not np.allclose(one, right)


def test_two_bugs_that_undo_each_other_are_left_out_together():
    """By law: a gain of 1 + w, less 1 again, is the right gain."""
    name = "models/untied_float32"
    model, graph = model_of(name), graph_of(name)
    bug = "act-silu-vs-gelu"
    taps = port(name, [f"{bug}[gelu (tanh) for silu]"], level="layers")
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    piece = graph.piece(graph.taps["model.layers.0"], values)
    here = {
        one.id: Atom(one, one.calls & frozenset(piece.calls))
        for one in hypotheses(catalogue(), graph)
        if one.id in ("norm-plus-one-missing", "norm-plus-one-twice")
        or (one.id, one.variant) == (bug, "gelu (tanh) for silu")
    }
    search = Search(trial, piece, [*here.values()])
    true = frozenset([here[bug]])
    assert len(here) == 3 and search.needed(frozenset(here.values())) == true
    assert search.needed(true) == true


def search_in(
    bugs: dict[str, str], dtype: str, level: str = "layers", tap: str = "model.layers.0"
) -> tuple[Search, frozenset[Atom]]:
    """Return the search over a piece of a port with some bugs, and these bugs there."""
    name = "models/untied_float32"
    model, graph = model_of(name), graph_of(name)
    taps = port(name, [f"{id}[{bugs[id]}]" for id in bugs], dtype=dtype, level=level)
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(dtype), values, Tensors(model.checkpoint))
    piece = graph.piece(graph.taps[tap], values)
    here = frozenset(
        Atom(one, one.calls & frozenset(piece.calls))
        for one in hypotheses(catalogue(), graph)
        if bugs.get(one.id) == one.variant
    )
    return Search(trial, piece, [*here]), here


def test_a_search_says_whether_all_that_does_as_well_was_looked_for():
    """By law: not if its budget was used up before, and not of what is settled elsewhere."""
    search, (atom,) = search_in({"norm-plus-one-missing": ""}, "float32")
    assert [one.complete for one in search.explanations([], [], deep=False)] == [True]
    settled = search.explanations([atom], [atom.hypothesis], deep=False)
    assert [one.complete for one in settled] == [False]
    search.budget.limit = -1
    assert [one.complete for one in search.explanations([], [], deep=False)] == [False]


def test_a_brief_search_goes_token_by_token_alone():
    search, _ = search_in({"norm-plus-one-missing": ""}, "float32")
    ways = [[frozenset[Atom]()]]
    first, *_, last = (attempt for attempt, _, _ in search.attempts(ways, search.atoms))
    assert first == search.staged
    assert last in (search.from_near, search.at_once)
    search.brief = True
    assert [attempt for attempt, _, _ in search.attempts(ways, search.atoms)] == [search.staged]


@pytest.mark.parametrize("begins", [True, False])
def test_stages_come_last_where_the_first_token_needs_several_bugs(begins, monkeypatch):
    """By hand: a gain alone explains it, beside an activation it does not."""
    bugs = {"norm-plus-one-missing": ""}
    bugs |= {} if begins else {"act-silu-vs-gelu": "gelu (tanh) for silu"}
    search, both = search_in(bugs, "float32")
    monkeypatch.setattr(search, "near", lambda known, visible: [both])
    monkeypatch.setattr(search, "leads", lambda: [both])
    tries = [*search.attempts([[frozenset()]], search.atoms)]
    sure, led, near = search.from_sure, search.straight, search.from_near
    expected = [search.staged, led, near] if begins else [sure, led, near, search.staged]
    assert [attempt for attempt, _, _ in tries] == expected
    assert next(starts for attempt, _, starts in tries if attempt == led) == [[both]]


def test_a_search_goes_straight_to_what_is_smaller_and_smaller():
    """By law: beside a large bug a rounded table, beside both an epsilon, among all others."""
    bugs = {
        "act-silu-vs-gelu": "gelu (tanh) for silu",
        "rope-cos-sin-half": "in bfloat16",
        "norm-eps-inflated-by-rescale": "",
    }
    search, every = search_in(bugs, "float32")
    graph, calls = search.trial.graph, search.piece.calls
    large = frozenset(one for one in every if one.hypothesis.id == "act-silu-vs-gelu")
    search.atoms = [
        Atom(one, here) for one in hypotheses(catalogue(), graph)
        if (here := one.calls & frozenset(calls))
    ]  # fmt: skip
    assert len(search.atoms) > 200
    found = search.straight([large], search.visible(search.atoms))
    assert [search.fewest(some) for some in found][:1] == [every]


def test_what_explains_one_token_of_a_norm_by_chance_hides_nothing(monkeypatch):
    """By law: all tokens together have these bugs alone, whatever the first one was taken for."""
    bugs = {"norm-plus-one-twice": "", "norm-eps-inflated-by-rescale": ""}
    search, both = search_in(bugs, "float32", "modules", "model.norm")
    monkeypatch.setattr(search, "staged", lambda *_: [])
    found = search.sets(search.atoms, [], [])
    assert len(both) == 2 and found == [both]


def test_a_bug_that_makes_noise_is_tried_on_what_all_but_explains_a_piece():
    """By witness: what is left is near the noise, and the bug leaves more of it by that measure."""
    loud, coarse = "act-silu-vs-gelu", "softmax-low-precision"
    search, both = search_in({loud: "gelu (erf) for silu", coarse: "in bfloat16"}, "float16")
    first = frozenset(atom for atom in both if atom.hypothesis.id == loud)
    assert len(both) == 2 and not search.explains(first)
    assert search.finished([first], search.atoms) == [both]
    assert search.finished([frozenset()], search.atoms) == []


def test_what_showed_nothing_yet_is_tried_on_what_all_but_explains_a_piece():
    """By hand: of two bugs that move what should be there by nothing, one moves what is there."""
    (loud,), (quiet,), (other,) = sets("loud", "quiet", "other")
    true = frozenset([loud, quiet])
    search = SimpleNamespace(
        atoms=[loud, quiet, other], spent=False, possible=lambda one: one is loud,
        fit=lambda atoms: (2.0, 2.0, 2.0), look_at=lambda some, rows: None,
        settles=lambda atoms: atoms == true,
    )  # fmt: skip
    near, none = [frozenset([loud])], [frozenset[Atom]()]
    for atom in (loud, quiet, other):
        object.__setattr__(atom.hypothesis, "fault", SimpleNamespace(coarse=False))
    found = [Search.finished(search, beam, [loud]) for beam in (near, none)]  # pyright: ignore[reportArgumentType]
    assert found == [[true], []]


def test_what_leaves_noise_in_the_same_calls_is_tried_in_the_place_of_one_of_a_set():
    """By witness: another activation was found first, which in bfloat16 leaves about as little."""
    bugs = {"act-silu-vs-gelu": "gelu (tanh) for silu", "attn-scale-twice": ""}
    search, both = search_in(bugs, "bfloat16")
    (loud,) = (atom for atom in both if atom.hypothesis.id == "act-silu-vs-gelu")
    some = {(one.id, one.variant): one for one in hypotheses(catalogue(), search.trial.graph)}
    search.atoms = [*search.atoms, quick := Atom(some["gelu-quick", "for silu"], loud.calls)]
    first = both - {loud} | {quick}
    assert with_siblings(search, [first], search.atoms) == [first, both]


def test_work_of_segments_leaves_the_search_its_own(monkeypatch: pytest.MonkeyPatch):
    """By hand: they compute more than the search may, and find nothing."""
    search, _ = search_in({"act-silu-vs-gelu": "gelu (tanh) for silu"}, "float32")

    def sets(close: float) -> list[frozenset[Atom]]:
        search.trial.count += 2 * search.budget.limit
        return []

    monkeypatch.setattr(by_stages, "Segments", lambda *_: SimpleNamespace(sets=sets))
    assert search.first([frozenset()], []) == []
    assert search.trial.count >= 2 * search.budget.limit and not search.spent


@pytest.mark.parametrize(("first", "count"), [(1.0, 1), (9.0, 2)])
def test_no_search_starts_from_a_bug_that_moves_a_first_token_which_is_right(first, count):
    """By hand: of two such bugs one moves the first token, by 8 noises, which may be right."""
    (moving,), (still,), (other,) = sets("moving", "still", "other")
    for atom in (moving, still, other):
        fault = SimpleNamespace(acausal=atom is not other)
        object.__setattr__(atom.hypothesis, "fault", fault)
    seen = SimpleNamespace(
        look=lambda atoms, rows: SimpleNamespace(raw=lambda *_: first), close=4.5,
        effect=lambda atom, *_: 8.0 if atom is moving else 0.0,
    )  # fmt: skip
    found = Search.acausal(seen, [frozenset()], [moving, still, other])  # pyright: ignore[reportArgumentType]
    assert found == [frozenset([one]) for one in (moving, still)[-count:]]


def test_what_explains_a_layer_is_tried_on_the_next_whatever_else_is_known():
    """By witness: of what two layers taught, that which is true here."""
    search, true = search_in({"act-silu-vs-gelu": "gelu (tanh) for silu"}, "float32")
    more = next(
        Atom(one, one.calls & frozenset(search.piece.calls))
        for one in hypotheses(catalogue(), search.trial.graph)
        if one.id == "norm-applied-twice"
    )
    assert as_taught(search, [true, frozenset([more])]) == [true]
    assert as_taught(search, [frozenset([more])]) == []


def test_what_explains_a_layer_of_another_kind_is_tried_but_makes_it_no_like_one(monkeypatch):
    """By witness: no set is searched then. Only of like ones it is known that few bugs are new."""
    search, true = search_in({"act-silu-vs-gelu": "gelu (tanh) for silu", "attn-scale-twice": ""},
                             "float32")  # fmt: skip
    monkeypatch.setattr(search, "sets", lambda *_: [])
    assert search.explanations([], [], deep=True) == []
    (found,) = search.explanations([], [], elsewhere=[true], deep=True)
    assert len(true) == 2 and found.atoms == true and not search.alike_known


def test_bugs_that_cannot_be_computed_together_explain_nothing():
    """By hand: keys with heads and tokens exchanged bring tables that fit no values."""
    name = "models/untied_float32"
    model, graph = model_of(name), graph_of(name)
    taps = port(name, ["norm-result-discarded"], dtype="float32", level="layers")
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    piece = graph.piece(graph.taps["model.layers.0"], values)
    bugs = {("rope-applied-to-v", "by the tables of the keys"), ("rope-axis-mixup", "")}
    both = frozenset(
        Atom(one, one.calls & frozenset(piece.calls))
        for one in hypotheses(catalogue(), graph)
        if (one.id, one.variant) in bugs
    )
    assert len(both) == 2
    with pytest.raises(ValueError, match="broadcast"):
        trial.centre(None).target(piece.target, rewritten(both, graph))
    assert not trial.judge(piece, rewritten(both, graph)).passed


def test_behind_a_router_only_what_brings_the_port_nearer_is_judged():
    """By witness: in half precision the error of the logits is small beside what rounding turns."""
    name = "qwen3_moe/separate"
    model, graph = model_of(name), graph_of(name)
    bug = "act-silu-vs-gelu"
    taps = port(name, [f"{bug}[gelu (tanh) for silu]"], dtype="bfloat16", level="logits")
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, dtype_named("bfloat16"), values, Tensors(model.checkpoint))
    piece = graph.piece(graph.taps["logits"], values)
    every = [Atom(one, one.calls) for one in hypotheses(catalogue(), graph)]
    search = Search(trial, piece, every)
    found = search.singles(every)
    assert bug in {atom.hypothesis.id for atoms in found for atom in atoms}
    assert set(found) <= search.judged.keys() and all(map(search.earned, search.judged))
    some = [atoms for atoms in map(search.alone, every) if search.may_explain(atoms)]
    assert not all(map(search.earned, some))


def test_a_router_that_was_turned_at_the_first_token_hides_no_further_bug(monkeypatch):
    """By law: no set explains that token, one bug is known, and the rest shows the other."""
    name, bugs = "gemma4/sparse", ("qk-norm-missing", "rope-pairing-swapped")
    model, graph = model_of(name), graph_of(name)
    taps = port(name, [f"{bugs[0]}[]", f"{bugs[1]}[]"], level="layers")
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    target = graph.taps["model.layers.0"]
    values[target] = values[target] * np.where(np.arange(20) == 0, 1.5, 1.0)[:, None]
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    trial.unsure = lambda piece, calls: (np.arange(20) == 0)[None]
    piece = graph.piece(target, values)
    both = [
        Atom(one, one.calls & frozenset(piece.calls))
        for one in hypotheses(catalogue(), graph)
        if one.id in bugs and not one.variant
    ]
    search = Search(trial, piece, both)
    assert len(both) == 2 and search.routed
    known = [atoms for atoms in map(search.alone, both) if "qk" in str(atoms)]
    assert search.in_stages(known, both) == []
    assert search.staged(known, both) == [frozenset(both)]
    monkeypatch.setattr(Search, "routed", False)
    assert search.staged(known, both) == []


def test_a_bug_that_leaves_all_tokens_the_same_beside_one_that_is_known():
    """By witness: without its matrix a projection gives its bias alone, here another layer's."""
    model, graph = model_of("gpt2/variant"), graph_of("gpt2/variant")
    target = graph.taps["transformer.h.0.attn.c_proj"]
    bugs = ["strict-false-drops-tensors[matrices of 0]", "layers-swapped[layer i has i + 1]"]
    taps = port("gpt2/variant", bugs, where=lambda call: call.number == target)
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    piece = graph.piece(target, values)
    every = [Atom(one, frozenset({target})) for one in hypotheses(catalogue(), graph)
             if target in one.calls]  # fmt: skip
    known = [one for one in every if f"{one.hypothesis.id}[{one.hypothesis.variant}]" == bugs[1]]
    search = Search(trial, piece, every)
    found = search.explanations(known, [], deep=True)
    told = [{f"{one.hypothesis.id}[{one.hypothesis.variant}]" for one in x.atoms} for x in found]
    assert {*bugs} in told and all(bugs[0] in some for some in told)


def test_looks_at_what_is_nearer_than_noise_leave_the_search_its_own():
    """By hand: a search that used its work up but for one look is as complete as it was."""
    coarse, other = "softmax-low-precision", "act-silu-vs-gelu"
    bugs = {coarse: "in bfloat16", other: "gelu (tanh) for silu"}
    search, both = search_in(bugs, "float16")
    (one,) = (atom for atom in both if atom.hypothesis.id == coarse)
    before = search.trial.count
    search.budget.limit = search.budget.used
    assert [*search.nearer(frozenset(), one, [*both])] == [*(both - {one})]
    assert search.trial.count > before and not search.spent
