"""Projections that were never loaded are known by their size and by nothing else. By law."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining import diagnosing
from lockstep.parity.explaining.searching.untrained import (
    Random,
    Sample,
    of_random_numbers,
)
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import (
    explained,
    graph_of,
    ids,
    is_of,
    model_of,
    port,
    rewrite_of,
)
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

NAME, DROPPED = "models/untied_float32", "strict-false-drops-tensors"
RIGHT = port(NAME)


def projected(weight_of):
    """Return a dump in which one projection is by another matrix, from inputs of its own."""
    taps = dict(RIGHT)
    x = taps["model.layers.1.post_attention_layernorm"]
    y = taps["model.layers.1.mlp.gate_proj"]
    taps["model.layers.1.mlp.gate_proj"] = (x @ weight_of((x.shape[-1], y.shape[-1]))).astype(
        np.float32
    )
    return taps


def drawn(deviation):
    return lambda shape: np.random.default_rng(5).standard_normal(shape) * deviation


def test_random_numbers_of_a_fresh_module_are_named():
    found = explained(NAME, projected(drawn(0.02)))
    (fault,) = (one for one in found.faults if one.taps == ["model.layers.1.mlp.gate_proj"])
    assert fault.id == "strict-false-drops-tensors"
    assert fault.variant == "never loaded: random numbers of deviation 0.02"


@sampled(1, "2.0")
@pytest.mark.parametrize("deviation", [0.005, 0.035, 0.2, 2.0])
def test_random_numbers_of_another_size_have_no_name(deviation):
    found = explained(NAME, projected(drawn(deviation)))
    assert "model.layers.1.mlp.gate_proj" in {one.tap for one in found.unexplained}


def test_numbers_that_cannot_be_squared_have_no_size():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sample(np.full((40, 40), 1e200), np.ones((40, 40)), 40).size is None


@pytest.mark.parametrize(("first", "size"), [(1.0, 0.02), (2.0, None)])
def test_numbers_that_are_large_in_one_direction_were_not_drawn(first, size):
    """By law: all are as large over all, and those of one direction are not like the others."""
    rng = np.random.default_rng(3)
    port, right = rng.standard_normal((17, 48)), rng.standard_normal((17, 48))
    port[0] *= first
    port *= 0.02 / np.sqrt(np.mean(port**2))
    assert Sample(port, right, 48).size == size


def test_a_right_port_was_loaded():
    assert explained(NAME, RIGHT).verdict == "clean"


def behind_heads(taps, bugs, graph, weight_of):
    """Return a dump in which the second layer's heads, wrong as they are, meet another matrix."""
    model, tap = model_of(NAME), "model.layers.1.self_attn.o_proj"
    (call,) = (one for one in graph.calls if tap in one.taps)
    values = {number: taps[tap] for tap, number in graph.taps.items() if tap in taps}
    run = Evaluator(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    calls = {one.number: one for one in graph.calls}
    for rewrite in map(rewrite_of, bugs):
        calls = {number: rewrite(one, graph) or one for number, one in calls.items()}
    wrong = call.with_changed(1, lambda ops, weight: weight_of(weight.shape).astype(np.float32))
    return taps | {tap: run.target(call.number, calls | {call.number: wrong})}


def layers_with(weight_of, dtype="float32"):
    """Return what a port dumps of its layers, with another matrix behind the second one's heads."""
    model, graph = model_of(NAME), graph_of(NAME)
    run = Evaluator(
        graph, ways(np.dtype(dtype))[1][0], np.dtype(dtype), {}, Tensors(model.checkpoint)
    )
    call = next(
        call for call in graph.calls
        if call.op == "linear" and call.layer == 1 and call.place.endswith("o_proj")
    )  # fmt: skip
    wrong = call.with_changed(1, lambda ops, weight: weight_of(weight.shape).astype(np.float32))
    taps = {tap: run.target(number, {call.number: wrong}) for tap, number in graph.taps.items()}
    return {tap: value for tap, value in taps.items() if is_of("layers", tap)}


def test_random_numbers_are_named_in_a_dump_of_the_layers():
    """By hand: the MLP behind them is undone, and what is left is by the matrix that was drawn."""
    found = explained(NAME, layers_with(drawn(0.02)))
    (fault,) = found.faults
    assert (fault.id, fault.taps) == ("strict-false-drops-tensors", ["model.layers.1"])
    assert fault.variant == "never loaded: random numbers of deviation 0.02"


@long
@pytest.mark.parametrize("deviation", [0.006, 0.05, 0.25])
def test_random_numbers_of_another_size_have_no_name_in_a_layer(deviation):
    known = [one for one in catalogue() if one.id == "strict-false-drops-tensors"]
    found = explained(NAME, layers_with(drawn(deviation)), known)
    assert found.faults == []
    assert [one.tap for one in found.unexplained] == ["model.layers.1"]


@long
def test_random_numbers_are_named_beside_bugs_that_like_pieces_have():
    """By witness: what the heads hand on is known from the other layers, and shows the matrix."""
    bug, prompt = "attn-scale-twice", 70
    taps = port(NAME, [bug], length=prompt)
    graph = graph_of(NAME, prompt)
    known = [one for one in catalogue() if one.id in (bug, "strict-false-drops-tensors")]
    for deviation, names in ((0.02, {one.id for one in known}), (0.2, {bug})):
        found = explained(
            NAME, behind_heads(taps, [bug], graph, drawn(deviation)), known, length=prompt
        )
        assert ids(found) == names
        tap = "model.layers.1.self_attn.o_proj"
        assert (tap in {one.tap for one in found.unexplained}) == (len(names) == 1)


def test_what_other_bugs_explain_is_not_read_as_random_numbers(monkeypatch):
    """By hand: a layer is read so, and has what another one shows."""
    bug = "norm-applied-twice"

    def read_wrongly(case):
        for piece in case.wrong:
            if case.tap(piece) == "model.layers.1":
                call = case.graph.calls[piece.target]
                named = of_random_numbers(call, case, SimpleNamespace(size=0.02), piece)
                yield Random(piece, named, seen=False)

    monkeypatch.setattr(diagnosing, "untrained", read_wrongly)
    known = [one for one in catalogue() if one.id in (bug, "strict-false-drops-tensors")]
    found = explained(NAME, port(NAME, [bug], level="layers"), known)
    assert ids(found) == {bug}
    assert "model.layers.1" in found.faults[0].taps
    random = explained(NAME, layers_with(drawn(0.2)), known)
    assert ids(random) == {"strict-false-drops-tensors"} and not random.unexplained


@pytest.mark.parametrize(("seen", "names"), [(False, set()), (True, {DROPPED})])
def test_random_numbers_inside_a_layer_are_doubted_where_nothing_explains_the_others(
    monkeypatch, seen, names
):
    """By hand: all layers have a bug that nobody knows, and one of them is read as random."""

    def read_wrongly(case):
        for piece in case.wrong:
            if case.tap(piece) == "model.layers.1":
                call = case.graph.calls[piece.target]
                named = of_random_numbers(call, case, SimpleNamespace(size=0.02), piece)
                yield Random(piece, named, seen)

    monkeypatch.setattr(diagnosing, "untrained", read_wrongly)
    known = [one for one in catalogue() if one.id == DROPPED]
    found = explained(NAME, port(NAME, ["norm-applied-twice"], level="layers"), known)
    assert ids(found) == names
    assert ("model.layers.1" in {one.tap for one in found.unexplained}) == (not seen)


@pytest.mark.parametrize(("seen", "name"), [(False, "norm-applied-twice"), (True, DROPPED)])
def test_the_head_is_shown_by_a_stack_of_layers_only_if_it_was_read(monkeypatch, seen, name):
    """By hand: logits are the head's output, and it is not said that another one lacks weights."""

    def read_wrongly(case):
        for piece in case.wrong:
            if case.tap(piece) == "logits":
                call = next(one for one in case.graph.calls if one.place.endswith("o_proj"))
                yield Random(
                    piece, of_random_numbers(call, case, SimpleNamespace(size=0.02), piece), seen
                )

    bug = "norm-applied-twice"
    taps = port(NAME, [bug], level="layers")
    taps = {tap: taps[tap] for tap in ("model.embed_tokens", "model.layers.0", "logits")}
    known = [one for one in catalogue() if one.id in (bug, DROPPED)]
    monkeypatch.setattr(diagnosing, "untrained", read_wrongly)
    found = explained(NAME, taps, known)
    assert [one.id for one in found.faults if "logits" in one.taps] == [name]
