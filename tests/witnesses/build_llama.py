"""Making Llama, Mistral and Qwen2 checkpoints with every rope scaling, and what transformers says.

Nothing of Lockstep is imported here: what this file computes is the outside truth.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from tests.witnesses import build

ORIGINAL = 16  # tokens before positions are stretched; prompts are longer
# Query heads times head_dim is not hidden_size, 1 < key/value heads < query heads, odd pairs.
SMALL = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral with a window": {"model_type": "mistral", "sliding_window": 9},
    "qwen2": {"model_type": "qwen2"},
    "qwen2 with a window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 7,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3"},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 48,
    },
    "yarn": YARN,
    "yarn, every key": YARN | {
        "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False, "mscale": 1.2, "mscale_all_dim": 0.7,
    },
    "yarn, mscale alone": YARN | {"mscale": 2.0},
    "yarn, attention factor": YARN | {"attention_factor": 1.3},
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": ORIGINAL},
    "longrope, factor": {
        "rope_type": "longrope", "original_max_position_embeddings": ORIGINAL, "factor": 7.0,
    },
}  # fmt: skip
BY_LENGTH = ("dynamic", "longrope", "longrope, factor")


def config(family: str, scaling: str, *, theta: float = 10_000.0, **sizes: Any) -> dict[str, Any]:
    """Return the keys of a small config; the dynamic kind has `ORIGINAL` positions."""
    keys = SMALL | FAMILIES[family] | sizes
    rope = {"rope_theta": theta} | SCALINGS[scaling]
    if scaling == "dynamic":
        keys["max_position_embeddings"] = ORIGINAL
    if rope["rope_type"] == "longrope":
        pairs = keys["head_dim"] // 2
        rope["short_factor"] = [1 + 0.3 * pair for pair in range(pairs)]
        rope["long_factor"] = [1.5 + 1.7 * pair for pair in range(pairs)]
    return keys | {"rope_parameters": rope}


def random_model(seed: int, keys: dict[str, Any]) -> PreTrainedModel:
    """Return a float32 model whose every parameter is random, the gains and biases too."""
    chosen = AutoConfig.for_model(**keys)
    model = AutoModelForCausalLM.from_config(chosen).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(build._spread(name, noise))
    return model


def save(model: Any, folder: Path, *, dtype: str, spelling: str = "rope_parameters") -> Path:
    """Store a model. `spelling` is where the rope keys go: "rope_parameters" as transformers 5
    writes them, or `rope_scaling` with its kind called "rope_type" or, as before 2024, "type"."""
    build.save(model, folder, dtype=dtype)
    if spelling != "rope_parameters":
        build.edit_config(folder, lambda config: spell_as_before_5(config, spelling))
    return folder


def spell_as_before_5(config: dict[str, Any], kind: str) -> None:
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    name = rope.pop("rope_type")
    config["rope_scaling"] = None if name == "default" else {kind: name} | rope
    config["torch_dtype"] = config.pop("dtype")


def packed_truth(folder: Path) -> PreTrainedModel:
    """Return transformers' model of a folder that mlx-lm quantised, dequantised in float32."""
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    plain = {key: value for key, value in stored.items() if key not in build.SECTIONS}
    chosen = AutoConfig.for_model(**plain)
    model = AutoModelForCausalLM.from_config(chosen, dtype=torch.float32).eval()
    weights = build.dequantized(folder, {name: w.shape for name, w in model.named_parameters()})
    rest = model.load_state_dict(weights, strict=False)
    tied = ["lm_head.weight"] if model.config.tie_word_embeddings else []
    if rest.missing_keys != tied or rest.unexpected_keys:
        raise ValueError(f"{folder}: {rest}")
    return model


def fresh(model: Any) -> Any:
    """Let a model forget the longest text that it has seen: dynamic rope remembers it."""
    rotary = model.model.rotary_emb
    rotary.max_seq_len_cached = rotary.original_max_seq_len
    rotary.inv_freq = rotary.original_inv_freq.clone()
    return model


def logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    return build.logits(fresh(model), tokens)


def greedy(model: Any, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return build.greedy(fresh(model), tokens)


def greedy_unequal(model: Any, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Continue the first row, and the first SHORT tokens of the second, each by itself."""
    rows = [greedy(model, tokens[:1]), greedy(model, tokens[1:, : build.SHORT])]
    ids, seen = zip(*rows, strict=True)
    return np.concatenate(ids), np.concatenate(seen)


@torch.no_grad()
def chunked(model: Any, tokens: np.ndarray, sizes: Iterable[int]) -> np.ndarray:
    """Run the tokens through transformers' own cache in chunks of these sizes."""
    cache, start, found = DynamicCache(config=fresh(model).config), 0, []
    for size in sizes:
        part = torch.tensor(tokens[:, start : start + size])
        found.append(model(part, past_key_values=cache, use_cache=True).logits.numpy())
        start += size
    return np.concatenate(found, axis=1)
