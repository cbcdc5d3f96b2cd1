"""What llama.cpp calls its tensors, by family. By hand, from its graphs."""

import pytest

from lockstep.parity.naming.llama_cpp import LAYER, PARTS, WHOLE, family_of, tap_of_llama_cpp
from lockstep.parity.naming.names import is_tap, tap_named

CASES = {
    ("llama", "embd"): "model.embed_tokens",
    ("llama", "Qcur-3"): "model.layers.3.self_attn.q_proj",
    ("llama", "Qcur-3 (rope)"): "model.layers.3.self_attn.q_rope",
    ("llama", "attn_out-3"): "model.layers.3.self_attn.o_proj",
    ("llama", "blk.3.attn_output"): "model.layers.3.self_attn.o_proj",
    ("llama", "ffn_moe_out-3"): "model.layers.3.mlp.experts",
    ("gpt2", "embd"): "transformer.wte",
    ("gpt2", "attn_norm-11"): "transformer.h.11.ln_1",
    ("gpt2", "l_out-0"): "transformer.h.0",
    ("gemma4", "inp_scaled"): "model.embed_tokens",
    ("gemma4", "attn_out-3"): "model.layers.3.residual",
    ("gemma4", "ffn_norm-3"): "model.layers.3.pre_feedforward_layernorm",
    ("gemma4", "Kcur_pos-3"): "model.layers.3.self_attn.k_rope",
}


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_name_means_its_tap(family, name):
    tap = CASES[family, name]
    assert tap_of_llama_cpp(name, family) == tap
    assert tap_named(f"step.2/{name}", family=family) == f"step.2/{tap}"


@pytest.mark.parametrize("family", WHOLE)
def test_every_row_of_a_table_is_a_tap(family):
    parts = [f"{LAYER[family]}.7" + (f".{part}" if part else "") for part in PARTS[family].values()]
    assert all(map(is_tap, (*WHOLE[family].values(), *parts)))


@pytest.mark.parametrize(
    "name", ["Qcur-03", "Qcur-3 (view)", "norm-0", "node_7", "blk.1", "l_out-"]
)
def test_what_means_no_tap(name):
    assert all(tap_of_llama_cpp(name, family) is None for family in WHOLE)


def test_the_family_is_told_by_taps_and_by_names():
    assert family_of(["model.embed_tokens", "logits"]) == family_of([]) == "llama"
    assert family_of(["transformer.wte"]) == family_of(["l_out-0", "wqkv_b-0"]) == "gpt2"
    assert family_of(["model.layers.0.pre_feedforward_layernorm"]) == "gemma4"
    assert family_of(["step.1/inp_scaled"]) == "gemma4"
