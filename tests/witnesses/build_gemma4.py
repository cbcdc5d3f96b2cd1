"""Making Gemma 4 checkpoints of every build. Nothing of Lockstep is imported here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from tests.witnesses import build

# Heads of two widths that make up no hidden width; groups share heads in both kinds of layers; the
# window is shorter than the prompt.
DENSE = {
    "vocab_size": 110,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "sliding_window": 9,
    "final_logit_softcapping": 1.5,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 110,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e4,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
SPARSE = DENSE | {
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 20,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}
# The last two layers have no keys, one of each kind; their MLP is twice as wide.
SMALL_BUILD = DENSE | {
    "attention_k_eq_v": False,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
}
CLEAR = 3e-4  # between the logits of the last expert that is chosen and the next


def random_model(seed: int, **config: Any) -> Gemma4ForCausalLM:
    """Return a float32 model whose every number is random, gains and layer scalars too."""
    model = Gemma4ForCausalLM(Gemma4TextConfig(**config)).eval()
    generator = torch.Generator().manual_seed(seed)
    named = [*model.named_parameters(), *model.named_buffers()]
    with torch.no_grad():
        for name, value in named:
            if "rotary_emb" in name or name.endswith("embed_scale"):
                continue
            value.copy_(spread(name, torch.randn(value.shape, generator=generator)))
    return model


def spread(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Scale noise so that every part of the model matters to the logits."""
    if name.endswith(("q_norm.weight", "k_norm.weight")):  # scores are not scaled otherwise
        return 0.5 + 0.2 * noise
    if "norm" in name or name.endswith("scale"):
        return 1 + 0.3 * noise
    if name.endswith("layer_scalar"):
        return 0.8 + 0.1 * noise
    if "embed_tokens" in name:
        return 0.1 * noise  # so that a token does not just repeat itself
    return 1.2 * noise / noise.shape[-1] ** 0.5


def save(model: Gemma4ForCausalLM, folder: Path, *, dtype: str) -> Path:
    return build.save(model, folder, dtype=dtype)


def truth(folder: Path, *, attention: str = "eager") -> Gemma4ForCausalLM:
    """Return transformers' model of a folder in float32."""
    return Gemma4ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention
    ).eval()


def spell_as_published(config: dict[str, Any]) -> None:
    """Spell a config as Google's files do: two keys for all full layers."""
    full = next(iter(config.pop("per_layer_config").values()), {})
    config["global_head_dim"] = full.get("head_dim", config["head_dim"])
    config["num_global_key_value_heads"] = full.get("num_key_value_heads")
    config["torch_dtype"] = config.pop("dtype")


def wrapped(plain: Path, target: Path) -> Path:
    """Store a text model as Google's multimodal files do, with tensors of images and sound."""
    tensors = {
        name.replace("model.", "model.language_model.", 1): value
        for name, value in load_file(plain / "model.safetensors").items()
    }
    for name in ("vision_tower.encoder.layers.0.mlp.up_proj.linear.weight", "embed_audio.weight"):
        tensors[f"model.{name}"] = torch.ones(2, 3)
    tensors["model.audio_tower.layers.0.input_max"] = torch.ones(())
    config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
    outer = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "audio_config": {"model_type": "gemma4_audio"},
        "vision_config": {"model_type": "gemma4_vision"},
        "image_token_id": 258880,
        "tie_word_embeddings": config["tie_word_embeddings"],
        "torch_dtype": config["dtype"],
    }
    spell_as_published(config)
    target.mkdir(parents=True)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(outer | {"text_config": config}, indent=2) + "\n"
    (target / "config.json").write_text(text, encoding="utf-8")
    return target


def carry_shared_keys(folder: Path) -> None:
    """Add the keys and values that published files have for layers that take those of others."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    first = config["num_hidden_layers"] - config["num_kv_shared_layers"]
    for layer in range(first, config["num_hidden_layers"]):
        for name in ("k_proj", "v_proj", "k_norm"):
            tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = torch.ones(3)
    save_file(tensors, path, metadata={"format": "pt"})


def activations(model: Gemma4ForCausalLM, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the output of every module that has one of its own, (1, L, …), by forward hooks."""
    found: dict[str, np.ndarray] = {}

    def listen(name: str) -> Callable[..., None]:
        def note(module: Any, args: Any, output: Any) -> None:
            value = output.float().numpy()
            flat = ".router." in name or name.endswith((".experts", "layernorm_2"))  # (B*L, …)
            if name.endswith("post_feedforward_layernorm_2"):
                flat = False
            found[name] = value.reshape(*tokens.shape, -1) if flat else value

        return note

    silent = ("", "model", "model.layers")
    containers = ("rotary_emb", "self_attn", "mlp", "router", "experts.act_fn")
    hooks = [
        module.register_forward_hook(listen(name))
        for name, module in model.named_modules()
        if name not in silent and not name.endswith(containers)
    ]
    build.logits(model, tokens)
    for hook in hooks:
        hook.remove()
    return found


def settled(model: Gemma4ForCausalLM, tokens: np.ndarray) -> bool:
    """Say whether no router is near a tie on these tokens, nor on their greedy continuation."""
    count = model.config.top_k_experts
    if not model.config.enable_moe_block or count == model.config.num_experts:
        return True
    parts = [tokens, tokens[:, : build.SHORT]]
    rows = [np.concatenate([part, build.greedy(model, part)[0]], axis=1) for part in parts]
    for row in [row for part in rows for row in part]:
        for name, logits in activations(model, row[None]).items():
            if name.endswith("router.proj"):
                ranked = -np.sort(-logits, axis=-1)
                if (ranked[..., count - 1] - ranked[..., count]).min() < CLEAR:
                    return False
    return True
