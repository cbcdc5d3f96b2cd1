"""Which tap a tensor of llama.cpp's graph means, for the architectures that it runs here.

Names are those of its evaluation callback. `parity.capture.llama_cpp` adds ` (rope)` to a turned
head that has the name of its projection, and calls a nameless product by its weight,
`blk.3.attn_output`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NUMBER = r"(?:0|[1-9][0-9]{0,5})"
NAME = re.compile(
    rf"(?P<stem>[A-Za-z_0-9]+?)-(?P<layer>{NUMBER})(?P<rope> \(rope\))?"
    rf"|blk\.(?P<block>{NUMBER})\.(?P<weight>[a-z_]+)"
)

# Of the whole model, and of a layer, by family.
WHOLE = {
    "llama": {
        "inp_embd": "model.embed_tokens",
        "embd": "model.embed_tokens",
        "result_norm": "model.norm",
        "result_output": "logits",
    },
    "gpt2": {
        "embd": "transformer.wte",
        "pos_embd": "transformer.wpe",
        "inpL": "transformer.drop",
        "result_norm": "transformer.ln_f",
        "result_output": "logits",
    },
    "gemma4": {
        "inp_scaled": "model.embed_tokens",
        "inp_per_layer_selected": "model.embed_tokens_per_layer",
        "per_layer_proj": "model.per_layer_projection_norm",
        "inp_per_layer": "model.per_layer_inputs",
        "result_norm": "model.norm",
        "result_output": "logits",
    },
}
LAYER = {"llama": "model.layers", "gpt2": "transformer.h", "gemma4": "model.layers"}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "Qcur_normed": "self_attn.q_norm",
    "Kcur_normed": "self_attn.k_norm",
    "Qcur": "self_attn.q_proj",
    "Kcur": "self_attn.k_proj",
    "Vcur": "self_attn.v_proj",
    "Qcur (rope)": "self_attn.q_rope",
    "Kcur (rope)": "self_attn.k_rope",
    "kq_soft_max": "self_attn.probs",
    "kqv_out": "self_attn.context",
    "attn_output": "self_attn.o_proj",
}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "l_out": ""}
PARTS = {
    "llama": ATTENTION
    | MLP
    | {
        "attn_out": "self_attn.o_proj",
        "ffn_inp": "residual",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate_b": "mlp.gate_proj",
        "ffn_up_b": "mlp.up_proj",
        "ffn_out": "mlp.down_proj",
        "ffn_moe_logits": "mlp.gate",
        "ffn_moe_out": "mlp.experts",
    },
    "gpt2": {
        "attn_norm": "ln_1",
        "wqkv_b": "attn.c_attn",
        "kq_soft_max": "attn.probs",
        "kqv_out": "attn.context",
        "attn_output": "attn.c_proj",
        "ffn_inp": "residual",
        "ffn_norm": "ln_2",
        "ffn_up_b": "mlp.c_fc",
        "ffn_gelu": "mlp.act",
        "ffn_out": "mlp.c_proj",
        "l_out": "",
    },
    "gemma4": ATTENTION
    | MLP
    | {
        "Qcur_pos": "self_attn.q_rope",
        "Kcur_pos": "self_attn.k_rope",
        "Vcur_normed": "self_attn.v_norm",
        "attn_post_norm": "post_attention_layernorm",
        "attn_out": "residual",
        "ffn_norm": "pre_feedforward_layernorm",
        "ffn_norm_1": "pre_feedforward_layernorm",
        "ffn_norm_2": "pre_feedforward_layernorm_2",
        "ffn_out": "mlp.down_proj",
        "ffn_down": "mlp.down_proj",
        "ffn_mlp": "post_feedforward_layernorm_1",
        "ffn_moe_logits": "router.proj",
        "ffn_moe_out": "experts",
        "ffn_moe": "post_feedforward_layernorm_2",
        "ffn_post_norm": "post_feedforward_layernorm",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "per_layer_embd_out": "post_per_layer_input_norm",
    },
}


def family_of(names: Iterable[str]) -> str:
    """Return whose table holds, by the taps of a model or the names of a dump; `llama` else."""
    for name in names:
        part = name.rpartition("/")[2]
        if part.startswith(("transformer.", "wqkv")):
            return "gpt2"
        if part.startswith("inp_scaled") or part.endswith("pre_feedforward_layernorm"):
            return "gemma4"
    return "llama"


def tap_of_llama_cpp(path: str, family: str) -> str | None:
    """Return the tap that a name of llama.cpp's graph means, None if it means none."""
    if path in WHOLE[family]:
        return WHOLE[family][path]
    found = NAME.fullmatch(path)
    if not found:
        return None
    part = PARTS[family].get(found["weight"] or found["stem"] + (found["rope"] or ""))
    if part is None:
        return None
    layer = f"{LAYER[family]}.{found['layer'] or found['block']}"
    return f"{layer}.{part}" if part else layer
