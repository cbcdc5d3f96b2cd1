"""Ports that dump as their authors like: right ones are clean, bugs keep their names. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.said.report import report
from lockstep.parity.faults import catalogue
from tests.parity.explaining.by_loop import experts_by_loop
from tests.parity.explaining.ports import explained, model_of, port
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

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


@long
@pytest.mark.parametrize("stray", ["x.0", "h_in.0", "blocks.2", "hidden_states.1"])
def test_a_right_port_is_not_accused_of_a_stream_with_a_number(stray):
    taps = port(NAME)
    streams = {tap for tap in taps if tap.rpartition(".")[2].isdigit()}
    theirs = {
        tap.replace("model.layers", "blocks"): value
        for tap, value in taps.items()
        if tap not in streams
    }
    found = explained(NAME, theirs | {stray: taps["model.embed_tokens"]})
    assert found.verdict == "clean" and stray in found.unmatched


def test_layers_counted_from_1_are_not_compared_with_their_neighbours():
    """The first layer alone, counted from 1, and the embeddings as number 0: values tell these."""
    taps = port(NAME)
    first = {
        tap.replace("model.layers.0", "block.1"): value
        for tap, value in taps.items()
        if ".layers.0" in tap or tap in ("model.norm", "logits")
    }
    found = explained(NAME, first | {"block.0": taps["model.embed_tokens"]})
    assert found.verdict == "clean" and found.compared == 4
    assert any("--map FILE" in line for line in found.conventions)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("mlp.up_proj", "mlp.fc1"), ("residual", "attn"), ("", "mlp")]
)
def test_words_of_two_meanings_accuse_nobody(ours, theirs):
    """Values say which is meant; where the first layer is wrong, nothing does."""
    taps = port(NAME)
    model = {tap: value for tap, value in taps.items() if ".layers." not in tap}
    every = taps | {f"model.layers.{n}.residual": stream_behind_attention(n, taps) for n in (0, 1)}
    named = {f"blocks.{n}.{theirs}": every[f"model.layers.{n}.{ours}".rstrip(".")] for n in (0, 1)}
    found = explained(NAME, model | named)
    assert found.verdict == "clean" and found.unmatched == []
    wrong = {name: value[:, ::-1] for name, value in named.items()}
    found = explained(NAME, model | wrong)
    assert found.verdict == "clean" and sorted(found.unmatched) == sorted(named)


def stream_behind_attention(layer, taps):
    before = taps["model.layers.0"] if layer else taps["model.embed_tokens"]
    return before + taps[f"model.layers.{layer}.self_attn.o_proj"]


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


@sampled(1, "-float16")
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", ["", "keys alone, ", "values alone, "])
def test_a_cache_in_half_precision_is_a_convention(half, form):
    found = explained(NAME, port(NAME, [f"keys-and-values-in-half[{form}in {half}]"]))
    assert found.verdict == "clean"
    (line,) = found.conventions
    assert line.startswith("keys-and-values-in-half: ")
    assert line.endswith(f" [{form}in {half}] (layers 0-1)")


def test_a_cache_in_half_precision_of_one_layer_says_which():
    bug = "keys-and-values-in-half[in bfloat16]"
    found = explained(NAME, port(NAME, [bug], where=lambda call: call.layer == 1))
    assert found.verdict == "clean" and found.conventions[0].endswith(" [in bfloat16] (layer 1)")


@long
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_matrices_in_half_precision_are_told_and_bugs_named_beside_them(half):
    kept = f"port-quantised-{half}"
    clean = explained(NAME, port(NAME, [kept]))
    assert clean.faults == [] == clean.unexplained and clean.weights[0].startswith(kept)
    found = explained(NAME, port(NAME, ["rope-theta-default[base 500000]", kept]))
    assert [bug.id for bug in found.faults] == ["rope-theta-default"]


@sampled(1, "models/biased_float16-all but norms-layers")
@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("form", ["matrices alone", "all but norms", "everything"])
@pytest.mark.parametrize("name", ["models/biased_float16", "gpt2/original"])
def test_all_that_is_kept_in_half_precision_is_told(name, form, level):
    """Biases, LayerNorm's gain and bias, and the table of positions too."""
    found = explained(name, port(name, [f"port-quantised-bfloat16[{form}]"], level=level))
    assert found.faults == [] == found.unexplained == found.conventions
    (line,) = found.weights
    assert line.startswith("port-quantised-bfloat16: ") and f" [{form}] (layers 0-1); " in line


@long
def test_weights_in_half_precision_in_one_place_are_told_there():
    bug = "port-quantised-bfloat16[everything]"
    norms = explained(NAME, port(NAME, [bug], where=lambda call: call.op == "rms_norm"))
    assert norms.faults == [] == norms.unexplained
    assert " [everything] " in norms.weights[0] and "_layernorm" in norms.weights[0]
    one = explained(NAME, port(NAME, [bug], where=lambda call: call.place.endswith("q_proj")))
    assert (
        "seen at model.layers.1.self_attn.q_proj, model.layers.0.self_attn.q_proj;"
        in one.weights[0]
    )


@long
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


def test_where_most_was_not_compared_the_headline_says_so_first():
    """A reader of CLEAN must not take it for more than the few tensors that it is said of."""
    taps = port(NAME, level="logits") | {f"x{n}": np.zeros(3) for n in range(5)}
    text = report(explained(NAME, taps))
    assert text.split("\n")[1].startswith("no bug named; 1 of the dump's 6 tensors compared, comp")
    assert "x0, x1, x2, x3 and 1 more; a map says what such names mean" in text


def test_experts_that_are_fed_what_the_mlp_takes():
    """By loop over tokens and experts; the norm that they should take is dumped as it should be."""
    name, at = "gemma4/sparse", "model.layers.1."
    taps = port(name)
    wide = {tap: value.astype(np.float64) for tap, value in taps.items()}
    inputs = wide[at + "pre_feedforward_layernorm"]
    made = experts_by_loop(model_of(name), wide, at, inputs, 2).astype(np.float32)
    before = [*taps][: [*taps].index(at + "experts")]
    found = explained(name, {tap: taps[tap] for tap in before} | {at + "experts": made})
    assert [(bug.id, bug.variant, bug.layers) for bug in found.faults] == [
        ("ffn-norms-swapped", "that of the MLP for the experts too", [1])
    ]
    assert not found.unexplained


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_norm_whose_result_is_dumped_and_dropped(level):
    """The last norm is dumped in both, and tells the form."""
    taps = port(NAME, ["norm-result-discarded[but dumped]"], level=level)
    found = explained(NAME, taps, [one for one in catalogue() if one.family == "norm"])
    named = [(bug.id, bug.variant) for bug in found.faults]
    assert named == [("norm-result-discarded", "but dumped")]
    assert not found.unexplained
