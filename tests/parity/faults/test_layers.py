"""Bugs that move a norm, a gain or an input to another place, on layers of real models.

By loop: what a tap should then be is worked out from the right values of the taps before it and
the weights of the checkpoint.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.graph import Evaluator, record
from lockstep.parity.planting.in_model import changed, reader
from lockstep.reference import ops
from tests.parity.explaining.by_loop import experts_by_loop
from tests.parity.explaining.ports import explained, ids, model_of, port
from tests.parity.faults.hand_made import FLOAT64, variant

WITNESSES = Path(__file__).parents[2] / "witnesses"
GEMMA, QWEN, LLAMA = "gemma4/sparse", "qwen3_moe/separate", "llama/mistral_window"
GPT2 = "gpt2/original"
LAYER = "model.layers.1"


@cache
def run_of(name):
    model = reference.load(WITNESSES / name)
    tokens = np.random.default_rng(2).integers(0, model.config.vocab_size, (1, 12))
    return Evaluator(record(model, tokens), ops, FLOAT64, {}, reader(model))


def right(name, tap):
    run = run_of(name)
    return run.target(run.graph.taps[tap])


def wrong(name, tap, id, kind=""):
    """The value of a tap when the bug is in layer 1, or behind all layers, alone."""
    run = run_of(name)
    calls = {
        number: call for number, call in changed(variant(id, kind), run.graph).items()
        if call.layer in (1, None)
    }  # fmt: skip
    return run.target(run.graph.taps[tap], calls)


def weight(name, tensor):
    return reference.load(WITNESSES / name).checkpoint.tensor(tensor).astype(float)


def unit(x, eps=1e-6):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


SKIPPED = [
    (GEMMA, "final-norm-missing", "model.norm", "model.layers.1"),
    (LLAMA, "final-norm-missing", "model.norm", "model.layers.1"),
    (GEMMA, "norm-result-discarded", f"{LAYER}.input_layernorm", "model.layers.0"),
    (GEMMA, "norm-result-discarded", f"{LAYER}.pre_feedforward_layernorm_2", f"{LAYER}.residual"),
    (LLAMA, "norm-result-discarded", f"{LAYER}.post_attention_layernorm", f"{LAYER}.residual"),
    (GEMMA, "sandwich-norm-missing", f"{LAYER}.post_attention_layernorm",
     f"{LAYER}.self_attn.o_proj"),
    (GEMMA, "sandwich-norm-missing", f"{LAYER}.post_feedforward_layernorm_1",
     f"{LAYER}.mlp.down_proj"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "id", "tap", "before"), SKIPPED, ids=str)
def test_a_norm_that_is_left_out_hands_its_input_on(name, id, tap, before):
    run = run_of(name)
    number = run.graph.taps[tap]
    call = variant(id)(run.graph.calls[number], run.graph)
    assert call is not None
    close(run.target(number, {number: call}), right(name, before))


@pytest.mark.parametrize(("name", "id"), [(LLAMA, "sandwich-norm-missing"),
                                          (QWEN, "v-norm-missing"), (LLAMA, "qk-norm-missing"),
                                          (LLAMA, "norm-wrong-side-of-projection"),
                                          (QWEN, "moe-router-input-scale-missing"),
                                          (GEMMA, "learned-pos-offset"),
                                          (QWEN, "tied-head-inherits-embed-scale"),
                                          (LLAMA, "layer-scalar-missing")])  # fmt: skip
def test_what_a_model_has_not_cannot_be_wrong_in_it(name, id):
    from lockstep.parity.faults import catalogue

    fault = next(fault for fault in catalogue() if fault.id == id)
    graph = run_of(name).graph
    assert not any(changed(rewrite, graph) for rewrite in fault.variants.values())


def test_values_are_used_as_they_are_projected():
    values = right(GEMMA, f"{LAYER}.self_attn.v_norm").shape
    projected = right(GEMMA, f"{LAYER}.self_attn.k_proj").reshape(values)  # they are the keys here
    close(wrong(GEMMA, f"{LAYER}.self_attn.v_norm", "v-norm-missing"), projected)


def test_heads_are_turned_before_they_are_normalised():
    raw = right(QWEN, f"{LAYER}.self_attn.q_proj").reshape(1, 12, 4, 12).swapaxes(1, 2)
    half, pairs = 6, np.arange(6)
    theta = run_of(QWEN).graph.config.rope_theta
    angle = np.arange(12)[:, None] * theta ** (-pairs / half)
    first, second = raw[..., :half], raw[..., half:]
    turned = np.concatenate([first * np.cos(angle) - second * np.sin(angle),
                             second * np.cos(angle) + first * np.sin(angle)], axis=-1)  # fmt: skip
    gain = weight(QWEN, f"{LAYER}.self_attn.q_norm.weight")
    close(wrong(QWEN, f"{LAYER}.self_attn.q_rope", "qk-norm-rope-order"), unit(turned) * gain)


def test_gains_of_two_norms_are_exchanged():
    gain = weight(GEMMA, f"{LAYER}.pre_feedforward_layernorm.weight")
    expected = unit(right(GEMMA, f"{LAYER}.self_attn.o_proj")) * gain
    tap = f"{LAYER}.post_attention_layernorm"
    close(wrong(GEMMA, tap, "norm-name-aliasing", "exchanged"), expected)


def test_gains_of_a_plain_layer_are_exchanged():
    gain = weight(QWEN, f"{LAYER}.post_attention_layernorm.weight")
    tap = f"{LAYER}.input_layernorm"
    expected = unit(right(QWEN, "model.layers.0")) * gain
    close(wrong(QWEN, tap, "norm-name-aliasing", "exchanged"), expected)
    gain = weight(QWEN, f"{LAYER}.self_attn.k_norm.weight")
    tap, case = f"{LAYER}.self_attn.q_norm", ("qk-norm-gains-mixed", "q_norm and k_norm exchanged")
    raw = right(QWEN, f"{LAYER}.self_attn.q_proj").reshape(right(QWEN, tap).shape)
    close(wrong(QWEN, tap, *case), unit(raw) * gain)


def layer_normed(x, name):
    gain, bias = (weight(GPT2, f"{name}.{part}") for part in ("weight", "bias"))
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain + bias


def test_a_layer_norm_takes_gain_and_bias_of_the_other():
    ln_1, ln_2 = (f"transformer.h.1.{norm}" for norm in ("ln_1", "ln_2"))
    case = ("norm-name-aliasing", "that before attention for both")
    expected = layer_normed(right(GPT2, "transformer.h.1.residual"), ln_1)
    close(wrong(GPT2, ln_2, *case), expected)
    close(wrong(GPT2, ln_1, *case), right(GPT2, ln_1))
    expected = layer_normed(right(GPT2, "transformer.h.0"), ln_2)
    close(wrong(GPT2, ln_1, "norm-name-aliasing", "exchanged"), expected)


@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("variant", ["exchanged", "that before attention for both"])
def test_parameters_of_the_other_layer_norm_are_named(variant, level):
    found = explained(GPT2, port(GPT2, [f"norm-name-aliasing[{variant}]"], level=level))
    assert ids(found) == {"norm-name-aliasing"} and variant in (found.faults[0].variant or "")
    assert found.unexplained == []


def test_the_gain_after_attention_stands_before_the_mlp_as_in_llama():
    gain = weight(GEMMA, f"{LAYER}.post_attention_layernorm.weight")
    expected = unit(right(GEMMA, f"{LAYER}.residual")) * gain
    tap = f"{LAYER}.pre_feedforward_layernorm"
    close(wrong(GEMMA, tap, "norm-name-aliasing", "as in Llama"), expected)


def test_what_attention_returns_is_normalised_as_in_gemma():
    gain = weight(QWEN, f"{LAYER}.post_attention_layernorm.weight")
    stream = right(QWEN, "model.layers.0") + unit(right(QWEN, f"{LAYER}.self_attn.o_proj")) * gain
    case = ("norm-name-aliasing", "as in Gemma")
    close(wrong(QWEN, f"{LAYER}.residual", *case), stream)
    close(wrong(QWEN, f"{LAYER}.post_attention_layernorm", *case), stream)


def routed(norm, scale, divided):
    """The router's scores of its own formula."""
    return norm * scale * divided @ weight(GEMMA, f"{LAYER}.router.proj.weight").T


SCALE, DIVIDED = "without the learned scale", "without hidden_size^-0.5"


@pytest.mark.parametrize("kind", [SCALE, DIVIDED, "without both"])
def test_the_router_misses_a_factor(kind):
    norm = right(GEMMA, f"{LAYER}.router.norm")
    scale = 1.0 if kind != DIVIDED else weight(GEMMA, f"{LAYER}.router.scale")
    expected = routed(norm, scale, 32**-0.5 if kind == SCALE else 1.0)
    close(wrong(GEMMA, f"{LAYER}.router.proj", "moe-router-input-scale-missing", kind), expected)


def test_the_router_normalises_its_scores():
    stream, scale = right(GEMMA, f"{LAYER}.residual"), weight(GEMMA, f"{LAYER}.router.scale")
    expected = unit(routed(stream, scale, 32**-0.5))
    case = ("norm-wrong-side-of-projection", "of the router")
    close(wrong(GEMMA, f"{LAYER}.router.proj", *case), expected)


@pytest.mark.parametrize("kind", ["normalised twice", "without a norm of its own"])
def test_the_router_reads_what_the_experts_read(kind):
    read = right(GEMMA, f"{LAYER}.pre_feedforward_layernorm_2")
    expected = unit(read) if kind == "normalised twice" else read
    close(wrong(GEMMA, f"{LAYER}.router.norm", "moe-router-input-wrong", kind), expected)


def test_the_router_reads_the_stream():
    case = ("moe-router-input-wrong", "the stream without its norm")
    expected = right(QWEN, f"{LAYER}.residual") @ weight(QWEN, f"{LAYER}.mlp.gate.weight").T
    close(wrong(QWEN, f"{LAYER}.mlp.gate", *case), expected)


@pytest.mark.parametrize("kind", ["before the MLP and before the experts", "before and after"])
def test_norms_around_the_mlp_are_exchanged(kind):
    other = "pre_feedforward_layernorm_2" if "experts" in kind else "post_feedforward_layernorm"
    gain = weight(GEMMA, f"{LAYER}.{other}.weight")
    expected = unit(right(GEMMA, f"{LAYER}.residual")) * gain
    close(wrong(GEMMA, f"{LAYER}.pre_feedforward_layernorm", "ffn-norms-swapped", kind), expected)


FED = {
    "that of the MLP for the experts too": "pre_feedforward_layernorm",
    "that behind the MLP for the experts": "post_feedforward_layernorm_1",
}


@pytest.mark.parametrize("kind", FED)
def test_experts_read_another_norm(kind):
    expected = said_of(right(GEMMA, f"{LAYER}.{FED[kind]}"))
    close(wrong(GEMMA, f"{LAYER}.experts", "ffn-norms-swapped", kind), expected)


@pytest.mark.parametrize("dumped", ["", ", not dumped"])
def test_experts_are_normed_by_the_gain_behind_the_mlp(dumped):
    gain = weight(GEMMA, f"{LAYER}.post_feedforward_layernorm_1.weight")
    expected = said_of(unit(right(GEMMA, f"{LAYER}.residual")) * gain)
    kind = f"before the experts as behind the MLP{dumped}"
    close(wrong(GEMMA, f"{LAYER}.experts", "ffn-norms-swapped", kind), expected)


def said_of(x):
    """Return what the experts say of a value, by a loop."""
    taps = {f"{LAYER}.router.proj": right(GEMMA, f"{LAYER}.router.proj")}
    return experts_by_loop(model_of(GEMMA), taps, f"{LAYER}.", x, 2)
