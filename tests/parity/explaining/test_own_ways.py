"""Ports that dump as their authors like: right ones are clean, bugs keep their names. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.said.report import report
from tests.parity.explaining.ports import explained, port

NAME = "models/untied_float32"
NANO = {
    "model.embed_tokens": "transformer.wte",
    "input_layernorm": "ln_1",
    "self_attn.o_proj": "attn.c_proj",
    "post_attention_layernorm": "ln_2",
    "mlp.down_proj": "mlp.c_proj",
    "model.layers": "transformer.h",
    "model.norm": "transformer.ln_f",
}


def in_nano_names(taps):
    """Return what a fork of nanoGPT calls its modules, fewer than the model has."""
    named = {}
    for tap, value in taps.items():
        name = tap
        for ours, theirs in NANO.items():
            name = name.replace(ours, theirs)
        ends = ("wte", "ln_1", "c_proj", "ln_2", "ln_f", "logits")
        if name.rpartition(".")[2] in ends or name.rpartition(".")[2].isdigit():
            named[name] = value
    return named


def test_a_fork_of_nanogpt_is_read_as_what_it_is():
    taps = in_nano_names(port(NAME))
    found = explained(NAME, taps)
    assert found.verdict == "clean" and found.compared == len(taps) and not found.unmatched
    wrong = explained(NAME, in_nano_names(port(NAME, ["act-silu-vs-gelu[gelu (tanh) for silu]"])))
    assert [bug.id for bug in wrong.faults] == ["act-silu-vs-gelu"]


def test_every_second_layer_under_names_of_its_own():
    kept = {tap: value for tap, value in port(NAME).items() if ".layers.1" not in tap}
    theirs = {tap.replace("model.layers", "blocks"): value for tap, value in kept.items()}
    found = explained(NAME, theirs)
    assert found.verdict == "clean" and found.compared > len(theirs) // 2


def last_rows(taps):
    return {tap: value[:, -1:] for tap, value in taps.items()}


def test_the_last_token_alone_is_read_as_such():
    found = explained(NAME, last_rows(port(NAME)))
    assert found.verdict == "clean" and "last alone" in found.conventions[0]
    wrong = explained(NAME, last_rows(port(NAME, ["act-silu-vs-gelu[gelu (tanh) for silu]"])))
    assert [bug.id for bug in wrong.faults] == ["act-silu-vs-gelu"]


def test_logits_of_one_token_need_no_axes():
    taps = {tap: value for tap, value in port(NAME).items() if tap != "lm_head"}
    found = explained(NAME, taps | {"logits": taps["logits"][0, -1]})
    assert found.verdict == "clean" and found.compared == len(taps)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_a_cache_in_half_precision_is_a_convention(half):
    found = explained(NAME, port(NAME, [f"keys-and-values-in-half[in {half}]"]))
    assert found.verdict == "clean"
    assert any(line.startswith("keys-and-values-in-half") for line in found.conventions)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_matrices_in_half_precision_are_told_and_bugs_named_beside_them(half):
    kept = f"port-quantised-{half}"
    clean = explained(NAME, port(NAME, [kept]))
    assert clean.faults == [] == clean.unexplained and clean.weights[0].startswith(kept)
    found = explained(NAME, port(NAME, ["rope-theta-default[base 500000]", kept]))
    assert [bug.id for bug in found.faults] == ["rope-theta-default"]


@pytest.mark.parametrize(
    "bug",
    [
        "fused-qkv-layout[all, cut group by group]",
        "fused-qkv-layout[group by group, cut as all]",
        "attn-head-dim-derived[1 / sqrt(hidden_size)]",
    ],
)
def test_what_porters_do_to_fused_heads_and_scales(bug):
    found = explained(NAME, port(NAME, [bug]))
    assert f"{found.faults[0].id}[{found.faults[0].variant}]" == bug and len(found.faults) == 1
    assert found.unexplained == []


def test_the_headline_counts_what_was_not_compared():
    taps = port(NAME) | {"blocks.0.thing": np.zeros(3), "blocks.0.other": np.zeros(4)}
    assert ", 2 tensors not, computed in float32" in report(explained(NAME, taps))
