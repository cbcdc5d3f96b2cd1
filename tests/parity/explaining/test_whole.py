"""Bugs of several calls: all of one or none of it, and each as the others leave what it does."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain
from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.explaining.searching.hypothesis import Atom, borrowed, hypotheses, rewritten
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from tests.parity.explaining import ports
from tests.parity.explaining.ports import Taps, graph_of, is_of, model_of, prompt
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

QWEN3 = "models/untied_float32"
FLOAT32 = np.dtype(np.float32)
Bug = tuple[str, str]  # an id and its variant


def atoms_of(bugs: Iterable[Bug], layer: int | None = None) -> list[Atom]:
    graph, wanted = graph_of(QWEN3), {*bugs}
    found = [
        Atom(one, frozenset(n for n in one.calls if layer in (None, graph.calls[n].layer)))
        for one in hypotheses(catalogue(), graph)
        if (one.id, one.variant) in wanted
    ]
    assert len(found) == len(wanted)
    return found


def port(*bugs: Bug, layer: int | None = None) -> Taps:
    """Return what modules give in a port with bugs, in another order of sums than ours."""
    model, graph = model_of(QWEN3), graph_of(QWEN3)
    run = Evaluator(graph, ways(FLOAT32)[1][0], FLOAT32, {}, Tensors(model.checkpoint))
    calls = rewritten(atoms_of(bugs, layer), graph)
    return {tap: run.target(n, calls) for tap, n in graph.taps.items() if is_of("modules", tap)}


def told(taps: Taps, *unknown: str) -> Diagnosis:
    """Explain a dump by a catalogue that lacks some classes."""
    model = model_of(QWEN3)
    dump = Dump(Path("port"), {tap: value.shape for tap, value in taps.items()}, taps.__getitem__)
    known = [fault for fault in catalogue() if fault.id not in unknown]
    return explain(model, dump, tokens=prompt(model)[0].tolist(), faults=known)


ORDER = ("qk-norm-rope-order", "dumped behind both")


@long
@pytest.mark.parametrize("other", ["rope-sign-flipped", "rope-axis-mixup"])
def test_heads_that_are_turned_before_their_norm_are_turned_as_wrongly(other):
    """By law: the norm's output shows a bug of a turn that comes before it, and it alone does."""
    found = told(port(ORDER, (other, "")))
    assert {one.id for one in found.faults} == {ORDER[0], other}
    assert not found.unexplained


@long
def test_values_are_turned_as_wrongly_as_keys():
    found = told(port(("rope-applied-to-v", ""), ("rope-sign-flipped", "")))
    assert {one.id for one in found.faults} == {"rope-applied-to-v", "rope-sign-flipped"}


def test_a_bug_does_again_what_others_left_of_a_call_but_not_what_it_did_itself():
    """By hand: the turn is undone behind the norm, and done before it."""
    graph = graph_of(QWEN3)
    order, sign = atoms_of([ORDER, ("rope-sign-flipped", "")], 0)
    norm = next(n for n in order.calls if graph.calls[n].op == "rms_norm")
    assert {graph.calls[n].op for n in borrowed(order.hypothesis, [norm], graph)} == {"rope"}
    run = Evaluator(graph, model_of(QWEN3).ops, FLOAT32, {}, Tensors(model_of(QWEN3).checkpoint))
    alone, both, right = (
        run.target(norm, rewritten(some, graph)) for some in ([order], [order, sign], [])
    )
    assert not np.allclose(alone, right) and not np.allclose(alone, both)
    assert np.allclose(alone[:, 0], both[:, 0], atol=1e-6)  # position 0 has no sign


@long
def test_half_of_a_bug_is_not_that_bug():
    """By law: where the norms are right, nothing was turned before them."""
    missing = "rope-missing-on-layer-kind"
    taps = port((missing, ""), layer=0)
    assert [one.id for one in told(taps).faults] == [missing]
    named = {one.id for one in told(taps, missing).faults}
    assert ORDER[0] not in named


def test_values_made_of_keys_are_no_rows_that_were_cut_otherwise():
    """By law: a port that cuts queries, values, keys has values for keys too."""
    name = "llama/mistral_window"
    taps = ports.port(name, ["v-taken-from-k"], level="layers")
    known = [
        one for one in catalogue() if one.id in ("fused-qkv-layout", "rope-applied-to-v")
    ]  # which together would make the same, if only the values were cut so
    found = ports.explained(name, taps, known)
    assert not found.faults and found.unexplained


@long
def test_rows_in_pairs_that_are_not_there_are_no_convention():
    """By law: a turn of neighbours alone is the bug, and no harmless order of rows."""
    bug = "rope-pairing-swapped"
    found = told(port((bug, ""), layer=0), bug)
    assert not [line for line in found.conventions if line.startswith("consistent-qk")]
    assert found.verdict == "unknown"


@long
def test_noughts_are_not_explained_by_whatever_leaves_noughts():
    """By law: that every token has the same shows no mask, no softmax and no cache."""
    taps = port()
    name = "model.layers.1.self_attn.o_proj"
    taps |= {name: np.zeros_like(taps[name])}
    found = told(taps, "strict-false-drops-tensors")
    assert not found.faults
    assert name in [one.tap for one in found.unexplained]


@sampled(1, "row t +1, of the head too-logits")
@pytest.mark.parametrize("level", ["modules", "logits"])
@pytest.mark.parametrize("variant", ["row t +1", "row t +1, of the head too"])
def test_a_shifted_table_is_one_bug_of_both_that_read_it(level, variant):
    """By law: where the head's own rows are right, ids alone were counted otherwise."""
    name, bug = "gemma4/effective", "embedding-id-shifted"
    known = [one for one in catalogue() if one.id in (bug, "tied-head-mishandled")]
    found = ports.explained(name, ports.port(name, [f"{bug}[{variant}]"], level=level), known)
    assert [(one.id, one.variant, one.also_fits) for one in found.faults] == [(bug, variant, [])]
    assert not found.unexplained
