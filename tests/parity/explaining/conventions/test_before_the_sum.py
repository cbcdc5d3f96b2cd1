"""Sums without their stream: what the port computed next says whether it is a bug. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from lockstep.reference.precision import dtype_named
from tests.parity.explaining.ports import explained, graph_of, ids, model_of, port
from tests.sampled import sampled

NAME, BUG = "llama/mistral_window", "residual-missing"
SAID = "dumped before the stream is added; what follows takes the sum"
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


def test_broken_numbers_are_no_branch():
    right = port(NAME)
    right["model.layers.0"] = np.full_like(right["model.layers.0"], np.nan)
    found = explained(NAME, right)
    assert found.verdict != "clean"
    assert not [one for one in found.conventions if one.endswith(SAID)]
