"""A small checkpoint of each architecture that is read, with weights at random: no torch needed.

Heads are 32 wide, so that every cache has codes for them, and windows are shorter than the texts of
the tests. `gemma4 wide` has heads of 512 in its full layers, as Gemma 4 itself.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.noise.random_checkpoint import safetensors
from lockstep.reference.checkpoint.config import read_config

COMMON = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 90,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
}
MIXED = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
EXPERTS = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
GEMMA = {key: value for key, value in COMMON.items() if key not in ("hidden_act", "rope_theta")} | {
    "model_type": "gemma4_text",
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "sliding_window": 7,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "final_logit_softcapping": 20.0,
    "tie_word_embeddings": True,
    "vocab_size_per_layer_input": 90,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25, "rope_theta": 1e4, "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
    },
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": COMMON | {"model_type": "llama", "attention_bias": True},
    "mistral": COMMON | {"model_type": "mistral", "sliding_window": 7},
    "qwen2": COMMON | MIXED | {"model_type": "qwen2"},
    "qwen3": COMMON | MIXED | {"model_type": "qwen3", "attention_bias": False},
    "qwen3_moe": COMMON | EXPERTS | {"model_type": "qwen3_moe", "norm_topk_prob": True},
    "gpt2": {
        "model_type": "gpt2", "n_embd": 96, "n_head": 3, "n_layer": 2, "n_positions": 128,
        "vocab_size": 90, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    },
    "gemma4 dense": GEMMA,
    "gemma4 experts": GEMMA | {
        "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 20,
    },
    "gemma4 shared": GEMMA | {
        "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16, "attention_k_eq_v": False,
        "num_global_key_value_heads": None, "use_double_wide_mlp": True,
    },
    "gemma4 wide": GEMMA | {"global_head_dim": 512},
    "wedlm 8B": COMMON | {"model_type": "wedlm", "qk_norm": True, "attention_bias": False},
    "wedlm 7B": COMMON | {"model_type": "wedlm", "qk_norm": False, "attention_bias": True},
}  # fmt: skip
TURNED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # of GPT-2, which stores (in, out)


def write(folder: Path, name: str) -> Path:
    """Write a checkpoint of an architecture: config.json, and model.safetensors in float32."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    parsed = read_config(folder / "config.json", ignore=())
    rng = np.random.default_rng(11)
    drawn = {
        stored(path, name): weight(path, shape, rng)
        for path, shape in parsed.architecture.tensors(parsed.config).items()
    }
    (folder / "model.safetensors").write_bytes(safetensors(drawn))
    return folder


def stored(path: str, name: str) -> str:
    """Return the name in a file, where a stack of experts has another one."""
    part = {"qwen3_moe": "switch_mlp", "gemma4 experts": "experts.switch_glu"}.get(name)
    return path if part is None else path.replace("experts", part)


def weight(path: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw a tensor such that every part matters and no softmax is of one token alone."""
    noise = rng.normal(size=shape)
    if len(shape) == 1:
        near_one = path.endswith(("norm.weight", "scale", "scalar", "ln_1.weight", "ln_2.weight"))
        noise = np.exp(0.3 * noise) if near_one or "ln_f.weight" in path else 0.3 * noise
    elif not path.endswith(("embed_tokens.weight", "wte.weight")):
        noise = noise / np.sqrt(shape[-1])
    if path.endswith(TURNED):
        noise = noise.T
    return noise.astype(np.float32)
