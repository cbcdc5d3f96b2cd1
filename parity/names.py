"""Which tap a dumped name means: Hugging Face, mlx-lm, llama.cpp, and wrappers around them."""

import re

WRAPPERS = ("model.language_model.", "language_model.model.", "base_model.model.model.")
DIGITS = r"(?P<layer>\d{1,5})"

LLAMA_CPP = {
    "inp_embd": "model.embed_tokens",
    "embd": "model.embed_tokens",
    "result_norm": "model.norm",
    "result_output": "logits",
}
LLAMA_CPP_LAYER = {
    "attn_norm": "input_layernorm",
    "Qcur_normed": "self_attn.q_norm",
    "Kcur_normed": "self_attn.k_norm",
    "Qcur": "self_attn.q_proj",
    "Kcur": "self_attn.k_proj",
    "Vcur": "self_attn.v_proj",
    "kqv_out": "self_attn.context",
    "attn_out": "self_attn.o_proj",
    "ffn_inp": "residual",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_out": "mlp.down_proj",
    "l_out": "",
}
LLAMA_CPP_PATTERN = re.compile(rf"(?P<stem>[A-Za-z_]+)-{DIGITS}", re.ASCII)
STEP = re.compile(r"step\.\d{1,9}/", re.ASCII)


def tap_named(name: str) -> str:
    """Return the tap that a dumped name means; a name that means none is returned as it is.

    A step's prefix is kept. `model.layers.3` is what a hook on that module returns, so are the
    names of mlx-lm, whose modules have the same paths; `l_out-3` is llama.cpp's name for it.
    """
    step = STEP.match(name)
    if step:
        return step.group() + tap_named(name[step.end() :])
    for wrapper in WRAPPERS:
        if name.startswith(wrapper):
            name = "model." + name.removeprefix(wrapper)
    if name in LLAMA_CPP:
        return LLAMA_CPP[name]
    graph = LLAMA_CPP_PATTERN.fullmatch(name)
    if graph and graph["stem"] in LLAMA_CPP_LAYER:
        part = LLAMA_CPP_LAYER[graph["stem"]]
        return f"model.layers.{int(graph['layer'])}" + (f".{part}" if part else "")
    # A hook on a module that only hands on its last part's output.
    aliases = {"self_attn": "self_attn.o_proj", "mlp": "mlp.down_proj"}
    path, _, last = name.rpartition(".")
    if re.fullmatch(rf"model\.layers\.{DIGITS}", path) and last in aliases:
        return f"{path}.{aliases[last]}"
    return "model.norm" if name == "model" else name
