"""Tiny random checkpoints of every implemented architecture, on which bugs are planted.

Shapes are chosen so that no bug hides behind luck: heads times head_dim is the width in `square`
alone, key/value heads are more than one and fewer than the query heads, every gain and bias is
random, windows are shorter than the prompt, and prompts run past the original rope length. Nothing
of Lockstep is imported: transformers and mlx write what is tested.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.witnesses import (
    build,
    build_adapters,
    build_gemma4,
    build_gpt2,
    build_llama,
    build_qwen3_moe,
)

LONG, SHORT = 40, 12  # tokens of a prompt; a short one ends before ropes are stretched
DEEP = {"num_hidden_layers": 4}
SQUARE = {"hidden_size": 32, "head_dim": 8, "num_attention_heads": 4}
UNTIED = {"tie_word_embeddings": False}
EXPERTS = {"num_experts": 12, "num_hidden_layers": 4}  # sorted as text, 10 comes after 1
SLIDING, FULL = "sliding_attention", "full_attention"

# family of build_llama, rope scaling, base of the rope, what else differs
LLAMAS: dict[str, tuple[str, str, float, dict[str, Any]]] = {
    "llama": ("llama", "default", 5e5, UNTIED | {"rms_norm_eps": 1e-6}),
    "llama_square": ("llama", "default", 1e4, SQUARE | {"tie_word_embeddings": True}),
    "llama_biased": ("llama with biases", "default", 1e4, UNTIED),
    "llama_llama3": ("llama", "llama3", 5e5, UNTIED),
    "llama_linear": ("llama", "linear", 1e4, UNTIED),
    "llama_yarn": ("llama", "yarn", 1e4, UNTIED),
    "llama_yarn_factor": ("llama", "yarn, attention factor", 1e4, UNTIED),
    "llama_longrope": ("llama", "longrope", 1e4, {"tie_word_embeddings": True}),
    "llama_dynamic": ("llama", "dynamic", 1e4, UNTIED),
    "mistral": ("mistral with a window", "default", 1e6, UNTIED),
    "qwen2": ("qwen2", "default", 1e6, {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}),
    "qwen2_window": ("qwen2 with a window", "default", 1e6, UNTIED | {"max_window_layers": 2}),
    "qwen3": ("qwen3", "default", 1e6, {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}),
}
GPT2 = build_gpt2.SMALL | {"n_layer": 4}
MOE = build_qwen3_moe.SMALL | EXPERTS | {"num_experts_per_tok": 3, "rope_theta": 1e6}
DENSE_GEMMA = build_gemma4.DENSE | {
    "hidden_size": 48,
    "num_hidden_layers": 5,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
    "num_global_key_value_heads": 2,
    "final_logit_softcapping": 3.0,
}
GEMMAS = {
    "gemma4_31b": DENSE_GEMMA,
    # torch multiplies groups of experts in half precision if rows are multiples of 16 bytes.
    "gemma4_26b": DENSE_GEMMA
    | {"enable_moe_block": True, "moe_intermediate_size": 24}
    | {"num_experts": 12, "top_k_experts": 3},
    # Wide vectors, and an eps: a gate that is nearly shut for a token blows up noise before a norm.
    "gemma4_e2b": build_gemma4.SMALL_BUILD
    | {"hidden_size": 80, "hidden_size_per_layer_input": 40, "rms_norm_eps": 1e-3}
    | {"num_hidden_layers": 6, "layer_types": [SLIDING, FULL] * 3}
    | {"final_logit_softcapping": 3.0},
}
PACKABLE = build.WIDE | {"num_hidden_layers": 3, "rope_theta": 1e6}

Maker = Callable[[int, Path, str], Path]


def llama(name: str) -> Maker:
    family, scaling, theta, more = LLAMAS[name]

    def make(seed: int, folder: Path, dtype: str) -> Path:
        keys = build_llama.config(family, scaling, theta=theta, **(DEEP | more))
        return build_llama.save(build_llama.random_model(seed, keys), folder, dtype=dtype)

    return make


def gpt2(seed: int, folder: Path, dtype: str) -> Path:
    return build.save(build_gpt2.random_model(seed, **GPT2), folder, dtype=dtype)


def moe(normalised: bool) -> Maker:
    def make(seed: int, folder: Path, dtype: str) -> Path:
        model = build_qwen3_moe.random_model(seed, **(MOE | {"norm_topk_prob": normalised}))
        return build_qwen3_moe.save(model, folder, dtype=dtype)

    return make


def gemma4(name: str) -> Maker:
    def make(seed: int, folder: Path, dtype: str) -> Path:
        model = build_gemma4.random_model(seed, **GEMMAS[name])
        build_gemma4.save(model, folder, dtype=dtype)
        if model.config.num_kv_shared_layers:
            keep_unused_keys(folder, seed)
        return folder

    return make


def keep_unused_keys(folder: Path, seed: int) -> None:
    """Add projections to the layers that take the keys of others: published files have them."""
    path, generator = folder / "model.safetensors", torch.Generator().manual_seed(seed)
    tensors = load_file(path)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kinds = config["layer_types"]
    for layer in range(len(kinds) - config["num_kv_shared_layers"], len(kinds)):
        for name in ("k_proj", "v_proj", "k_norm"):
            stem = "model.layers.{}.self_attn." + name + ".weight"
            like = tensors[stem.format(kinds.index(kinds[layer]))]
            noise = torch.randn(like.shape, generator=generator)
            tensors[stem.format(layer)] = build_gemma4.spread(name, noise).to(like.dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def packed(seed: int, folder: Path, dtype: str) -> Path:
    """Store Qwen3 in 4 bits and groups of 32, as the files of mlx-community are."""
    build.save(build.random_model(seed, **PACKABLE), folder, dtype=dtype)
    return build.quantize_by_hand(folder, bits=4, group_size=32)


BUILDS: dict[str, Maker] = {
    **{name: llama(name) for name in LLAMAS},
    "qwen3_moe": moe(True),
    "qwen3_moe_raw": moe(False),
    "gpt2": gpt2,
    **{name: gemma4(name) for name in GEMMAS},
    "qwen3_packed": packed,
}


def make(name: str, folder: Path, *, seed: int, dtype: str = "bfloat16") -> Path:
    """Write the build `name` with weights drawn from `seed`, stored as `dtype`."""
    return BUILDS[name](seed, folder, dtype)


def tokens(seed: int, folder: Path, *, length: int = LONG, rows: int = 1) -> np.ndarray:
    """Draw prompts for a build, (rows, length)."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return np.random.default_rng(seed).integers(0, config["vocab_size"], (rows, length))


ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {"target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"]},
    "rslora": {"use_rslora": True, "target_modules": ["q_proj", "k_proj", "up_proj"]},
    "dora": {"use_dora": True, "target_modules": ["q_proj", "o_proj", "gate_proj"]},
    # As mlx-lm trains: the last layers alone.
    "last": {"layers_to_transform": [2, 3], "target_modules": ["q_proj", "v_proj"]},
}


def adapter(name: str, base: Path, folder: Path, *, seed: int) -> Path:
    """Write a random adapter in PEFT's format for a build without packed weights."""
    config = {"r": 4, "lora_alpha": 6} | ADAPTERS[name]
    build_adapters.peft_adapter(build.truth(base), folder, seed, **config)
    return folder
