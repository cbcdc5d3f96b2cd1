"""Tiny random models of architectures that Lockstep has no reference file for."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]
# What each has that the reference's architectures have not, or have otherwise.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Olmo2": {},  # norms behind the blocks, and over all heads
    "Gemma3Text": {"head_dim": 12, "sliding_window": 4, "layer_types": WINDOWS},
    "Gemma2": {"head_dim": 12, "sliding_window": 4, "layer_types": WINDOWS},  # two softcaps
    "Cohere2": {"sliding_window": 4, "layer_types": WINDOWS},  # parallel blocks, LayerNorm
    "Phi3": {"sliding_window": 5},  # fused projections
    "Granite": {"residual_multiplier": 0.7, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "Olmoe": {"num_experts": 6, "num_experts_per_tok": 2},
    "Mixtral": {"num_local_experts": 4},
    # A rope that works its frequencies out anew in every pass, a router of its own.
    "Phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "GptOss": {  # sinks, experts with biases
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 12,
        "sliding_window": 4,
        "layer_types": WINDOWS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "DeepseekV3": {  # latent attention, groups of experts, a shared one
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
        "num_key_value_heads": 4,
    },
}
ALSO: dict[str, dict[str, Any]] = {
    "StableLm": {},
    "Glm4": {},
    "Qwen2Moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "Qwen3Moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 12,
    },
    # No attention, or hardly any.
    "Mamba": {"state_size": 8},
    "RecurrentGemma": {
        "lru_width": 48,
        "block_types": ["recurrent", "attention"],
        "attention_window_size": 8,
        "head_dim": 12,
    },
}
TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32]


def make(name: str, folder: Path, seed: int = 0, **sizes: Any) -> Path:
    """Write a checkpoint whose every parameter is random and matters; return its folder."""
    config = getattr(transformers, f"{name}Config")(**SIZES | (ARCHITECTURES | ALSO)[name] | sizes)
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(spread(path, torch.randn(parameter.shape, generator=generator)))
    model.save_pretrained(folder)
    return folder


class Folders:
    """The checkpoint of each architecture, made when it is first asked for."""

    def __init__(self, home: Path):
        self.home = home

    def __call__(self, name: str) -> Path:
        folder = self.home / name
        return folder if folder.exists() else make(name, folder)


def spread(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Scale noise so that every part of the model matters to the logits."""
    if noise.ndim == 1:
        return 1 + 0.3 * noise if "norm" in name else 0.5 * noise
    return 0.3 * noise if "embed" in name else 1.5 * noise / noise.shape[-1] ** 0.5


def loaded(folder: Path, dtype: str, attention: str = "eager", **options: Any) -> Any:
    """Load a model as a port would that is made of torch modules."""
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation=attention, **options
    ).eval()
