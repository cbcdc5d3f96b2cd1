"""Sums without their stream: what the port computed next says whether it is a bug. By law."""

import json

import numpy as np
import pytest

from lockstep.parity.excerpts.excerpt import excerpt_of
from lockstep.parity.explain import explain
from lockstep.parity.explaining.dumped import on_disk
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from lockstep.reference.precision import dtype_named
from tests.parity.explaining.ports import (
    dumped,
    explained,
    graph_of,
    ids,
    model_of,
    port,
    rewrite_of,
)
from tests.sampled import sampled

NAME, BUG = "llama/mistral_window", "residual-missing"
SAID = "dumped before the stream is added; what follows takes the sum"
DROPPED_AT = "model.layers.1.self_attn.o_proj.weight"
LAST = ("model.layers.0", "model.layers.1", "model.norm", "logits")


def bare(taps, wanted, dtype="float32", name=NAME):
    """Return a dump in which the branch of some sums has the name of the sum."""
    graph, model, kind = graph_of(name), model_of(name), dtype_named(dtype)
    run = Evaluator(graph, ways(kind)[1][0], kind, {}, Tensors(model.checkpoint))
    numbers = {tap: graph.calls[graph.taps[tap]].inputs[1].number for tap in wanted}
    return taps | {tap: run.target(number) for tap, number in numbers.items()}


LEVELS = {
    "modules": ["model.layers.0", "model.layers.1"],
    "layers": ["model.layers.0", "model.layers.1"],
    "taps": ["model.layers.0.residual", "model.layers.1.residual", "model.layers.0"],
}


@sampled(3, "layers-bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_right_port_that_dumps_its_branches_is_clean(level, dtype):
    right = port(NAME, level=level, dtype=dtype)
    found = explained(NAME, bare(right, LEVELS[level], dtype))
    assert found.verdict == "clean"
    (line,) = (one for one in found.conventions if one.endswith(SAID))
    assert ("residual" in line) == (level == "taps")


@sampled(3, "layers-mlp-bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("place", ["attention", "mlp", "one"])
@pytest.mark.parametrize("level", ["modules", "layers", "taps", "logits"])
def test_a_port_that_goes_on_without_the_stream_has_the_bug(level, place, dtype):
    where = {
        "attention": lambda call: call.place == "residual",
        "mlp": lambda call: call.place == "" and call.layer is not None,
        "one": lambda call: call.place == "residual" and call.layer == 1,
    }[place]
    found = explained(NAME, port(NAME, [BUG], where=where, level=level, dtype=dtype))
    assert ids(found) == {BUG} and not found.unexplained
    assert not [one for one in found.conventions if one.endswith(SAID)]


def test_a_last_layer_of_which_nothing_follows_is_left_unknown():
    """By law: its branch and its bug are the same numbers, and no other layer tells."""
    graph = graph_of(NAME)
    right = port(NAME, level="layers")
    taps = {tap: right[tap] for tap in ("model.embed_tokens", *LAST[:2])}
    assert graph.taps.keys() >= taps.keys()
    found = explained(NAME, bare(taps, ["model.layers.1"]))
    assert found.verdict == "unknown"
    assert [one.tap for one in found.unexplained] == ["model.layers.1"]


def test_what_other_layers_show_is_said_of_the_last():
    where = lambda call: call.place == "" and call.layer is not None  # noqa: E731
    wrong = port(NAME, [BUG], where=where)
    taps = {tap: value for tap, value in wrong.items() if tap not in ("model.norm", *LAST[3:])}
    taps = {tap: value for tap, value in taps.items() if tap != "lm_head"}
    found = explained(NAME, taps)
    assert ids(found) == {BUG} and not found.unexplained
    assert found.faults[0].layers == [0, 1]


def test_a_stream_that_is_lost_beside_another_bug_keeps_its_name():
    found = explained(NAME, port(NAME, [BUG, "rope-sign-flipped"]))
    assert ids(found) == {BUG, "rope-sign-flipped"} and not found.unexplained


@pytest.mark.parametrize("at", ["1:20", "5,last:3"])
def test_of_some_tokens_the_others_are_sums_already(at):
    """By law: what the reference puts in their place has its stream."""
    taps, excerpt = bare(port(NAME, level="layers"), ["model.layers.0"]), excerpt_of(at, [20])
    some = {tap: excerpt.cut(tap, value) for tap, value in taps.items()}
    dump = dumped(some, NAME, positions=json.dumps(excerpt.rows[0]))
    found = explain(model_of(NAME), dump, faults=())
    assert found.verdict == "clean" and [one for one in found.conventions if one.endswith(SAID)]


def test_a_port_that_stores_half_precision_is_still_told_so():
    """By law: of sums that were made here the bits say nothing of what the port computed in."""
    half = dtype_named("bfloat16")
    taps = bare(port(NAME, level="taps"), ["model.layers.0"])
    stored = {tap: value.astype(half) for tap, value in taps.items()}
    found = explained(NAME, stored, ())
    assert found.verdict == "clean"
    assert [one for one in found.conventions if one.startswith("computed in finer numbers")]


def test_a_lost_stream_before_random_numbers_is_named_with_them():
    """By law: what is read as random numbers goes on from the value too."""
    mlp = lambda call, graph: (  # noqa: E731
        rewrite_of(BUG)(call, graph) if call.place == "" and call.layer == 0 else None
    )
    shape = model_of(NAME).checkpoint.stored(DROPPED_AT).shape
    numbers = np.random.default_rng(3).standard_normal(shape).astype(np.float32) * np.float32(0.02)
    random = lambda call, graph: (  # noqa: E731
        call.with_changed(1, lambda ops, weight: numbers)
        if call.op == "linear" and call.tensor(1) == DROPPED_AT
        else None
    )
    found = explained(NAME, port(NAME, [mlp, random], level="layers"))
    assert ids(found) == {BUG, "strict-false-drops-tensors"} and not found.unexplained


@pytest.mark.parametrize("rows", [4, 1 << 19])
def test_large_values_lie_in_a_file(rows):
    value = np.arange(rows, dtype=np.float32)
    kept = on_disk(value)
    np.testing.assert_array_equal(kept, value)
    assert isinstance(kept, np.memmap) == (value.nbytes >= 1 << 20)


def test_broken_numbers_are_no_branch():
    right = port(NAME)
    right["model.layers.0"] = np.full_like(right["model.layers.0"], np.nan)
    found = explained(NAME, right)
    assert found.verdict != "clean"
    assert not [one for one in found.conventions if one.endswith(SAID)]
