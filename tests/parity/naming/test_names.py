"""Names of dumps in tables, written out by hand from the projects that use them."""

import pytest

from lockstep.parity.naming.names import is_tap, parted, step_of, tap_named, unwrapped
from lockstep.parity.replaying.taps import taps_of
from lockstep.reference.checkpoint.checkpoint import open_checkpoint

LAYER = "model.layers.3"
# What forward hooks on every module of a transformers or mlx-lm Qwen3 are called.
MODULES = {
    "model.embed_tokens": "model.embed_tokens",
    "model.layers.3": LAYER,
    "model.layers.3.input_layernorm": f"{LAYER}.input_layernorm",
    "model.layers.3.self_attn": f"{LAYER}.self_attn.o_proj",
    "model.layers.3.self_attn.q_proj": f"{LAYER}.self_attn.q_proj",
    "model.layers.3.self_attn.q_norm": f"{LAYER}.self_attn.q_norm",
    "model.layers.3.mlp": f"{LAYER}.mlp.down_proj",
    "model.layers.3.mlp.act_fn": f"{LAYER}.mlp.act_fn",
    "model.norm": "model.norm",
    "model": "model.norm",
    "lm_head": "lm_head",
}
WRAPPED = {
    "model.layers.3.mlp.down_proj.__call__": f"{LAYER}.mlp.down_proj",
    "model.layers.3.self_attn.__call__": f"{LAYER}.self_attn.o_proj",
    "layers.3.mlp.up_proj": f"{LAYER}.mlp.up_proj",
    "embed_tokens": "model.embed_tokens",
    "norm": "model.norm",
    "_orig_mod.model.norm": "model.norm",
    "module.model.layers.3": LAYER,
    "module._orig_mod.lm_head": "lm_head",
    "base_model.model.model.layers.3.mlp": f"{LAYER}.mlp.down_proj",
    "base_model.model.lm_head": "lm_head",
    "model.language_model.layers.3.self_attn": f"{LAYER}.self_attn.o_proj",
    "language_model.model.layers.3": LAYER,
    "language_model.lm_head": "lm_head",
    "model.model.layers.3": LAYER,
    "model.lm_head": "lm_head",
    "model.logits": "logits",
    "module._orig_mod.logits": "logits",
}
LLAMA_CPP = {
    "inp_embd": "model.embed_tokens",
    "attn_norm-3": f"{LAYER}.input_layernorm",
    "Qcur-3": f"{LAYER}.self_attn.q_proj",
    "Qcur_normed-3": f"{LAYER}.self_attn.q_norm",
    "Kcur-3": f"{LAYER}.self_attn.k_proj",
    "Kcur_normed-3": f"{LAYER}.self_attn.k_norm",
    "Vcur-3": f"{LAYER}.self_attn.v_proj",
    "kqv_out-3": f"{LAYER}.self_attn.context",
    "attn_out-3": f"{LAYER}.self_attn.o_proj",
    "ffn_inp-3": f"{LAYER}.residual",
    "ffn_norm-3": f"{LAYER}.post_attention_layernorm",
    "ffn_gate-3": f"{LAYER}.mlp.gate_proj",
    "ffn_up-3": f"{LAYER}.mlp.up_proj",
    "ffn_out-3": f"{LAYER}.mlp.down_proj",
    "l_out-3": LAYER,
    "result_norm": "model.norm",
    "result_output": "logits",
}
TABLE = MODULES | WRAPPED | LLAMA_CPP


@pytest.mark.parametrize(("dumped", "tap"), TABLE.items(), ids=TABLE)
def test_a_name_means_a_tap(dumped, tap):
    assert tap_named(dumped) == tap
    assert is_tap(tap)


@pytest.mark.parametrize(("dumped", "tap"), TABLE.items(), ids=TABLE)
def test_a_step_is_kept_and_step_0_is_the_prefill(dumped, tap):
    assert tap_named(f"step.12/{dumped}") == f"step.12/{tap}"
    assert tap_named(f"step.0/{dumped}") == tap
    assert (step_of(f"step.12/{tap}"), step_of(tap)) == (12, 0)


@pytest.mark.parametrize("tap", sorted(set(TABLE.values())))
def test_a_tap_is_called_itself(tap):
    assert tap_named(tap) == unwrapped(tap) == tap


@pytest.mark.parametrize(
    "name",
    [
        *("model.layers.٣", "model.layers.３.mlp", "Qcur-٣", "model.layers.1_0.mlp"),
        *("model.layers.-1", "model.layers.00001.mlp", "Qcur-01", "model.layers.1e3"),
        *("model.layers.9999999", "step.٣/logits", "step.01/logits", "step.99999999/logits"),
        *("model.rotary_emb", "qcur-3", "Qcur-3 (reshaped)", "", "logits\n", "model.layers.3\n"),
    ],
)
def test_what_is_no_name_is_left_as_it_is(name):
    assert tap_named(name) == name
    assert not is_tap(name)
    assert parted(name) == ("", name)


@pytest.mark.parametrize("fixture", ["plain", "tied", "packed"])
def test_every_tap_of_a_model_is_one(fixture, request):
    for tap in taps_of(open_checkpoint(request.getfixturevalue(fixture))):
        assert is_tap(tap["name"])
        assert tap_named(tap["name"]) == tap["name"]
