"""llama.cpp's names of tensors, and Hugging Face's.

Source: gguf-py/gguf/tensor_mapping.py of llama.cpp.
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
NAME = re.compile(r"(?:(?:model\.layers|transformer\.h)\.([0-9]+)\.)?(.+)\.(weight|bias)")
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
# Divisors of the rotary frequencies, where positions are stretched.
FREQUENCIES = "rope_freqs.weight"


def stored_name(name: str) -> str:
    """Return what llama.cpp calls a tensor. Raises KeyError for one that it has no name for."""
    found = NAME.fullmatch(name)
    if found is None:
        raise KeyError(name)
    layer, module, kind = found.groups()
    return f"{TOP[module]}.{kind}" if layer is None else f"blk.{layer}.{LAYER[module]}.{kind}"
