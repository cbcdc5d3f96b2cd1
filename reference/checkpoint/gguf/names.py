"""llama.cpp's names of tensors, and Hugging Face's.

Source: gguf-py/gguf/tensor_mapping.py of llama.cpp, and conversion/gemma.py for scales.
"""

from __future__ import annotations

import re

TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    # GPT-2
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    # Gemma 4
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    # GPT-2
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
# Gemma 4 has norms before and after each part; one of them has another name than elsewhere.
GEMMA4_LAYER = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "router.proj": "ffn_gate_inp",
    "experts.gate_proj": "ffn_gate_exps",
    "experts.up_proj": "ffn_up_exps",
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}
# Whole names within a layer: these are no weights or biases of a module.
GEMMA4_SCALES = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}
OF_LAYER = re.compile(r"(?:model\.layers|transformer\.h)\.([0-9]+)\.(.+)")
NAME = re.compile(r"(.+)\.(weight|bias)")
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
# Divisors of the rotary frequencies, where positions are stretched or pairs stand still.
FREQUENCIES = "rope_freqs.weight"


def stored_name(name: str, kind: str) -> str:
    """Return what llama.cpp calls a tensor in files whose `general.architecture` is `kind`.

    Raises KeyError for one that it has no name for.
    """
    layered = OF_LAYER.fullmatch(name)
    prefix, rest = (f"blk.{layered[1]}.", layered[2]) if layered else ("", name)
    if layered and kind == "gemma4" and rest in GEMMA4_SCALES:
        return prefix + GEMMA4_SCALES[rest]
    found = NAME.fullmatch(rest)
    if found is None:
        raise KeyError(name)
    table = LAYER | (GEMMA4_LAYER if kind == "gemma4" else {}) if layered else TOP
    return f"{prefix}{table[found[1]]}.{found[2]}"
