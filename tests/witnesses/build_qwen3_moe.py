"""Making Qwen3-MoE checkpoints in every form that people have. Nothing of Lockstep is imported."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.witnesses import build

# Layer 0 is dense by the list; heads times head_dim is not the width; 1 < groups < heads.
SMALL = {
    "vocab_size": 110,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
PACKABLE = SMALL | {
    "hidden_size": 64,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "num_experts": 5,
}
CLEAR = 3e-4  # between the logits of the last expert that is chosen and the next
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def random_model(seed: int, **config: Any) -> Qwen3MoeForCausalLM:
    """Return a float32 model whose every parameter is random, the gains and biases too."""
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**config)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(spread(name, noise))
    return model


def spread(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Scale noise so that every part of the model matters to the logits."""
    if "norm" in name:
        return 1 + 0.3 * noise
    if name.endswith("bias"):
        return 0.5 * noise
    if "embed_tokens" in name:
        return 0.3 * noise
    return 1.2 * noise / noise.shape[-1] ** 0.5


def save(model: Qwen3MoeForCausalLM, folder: Path, *, dtype: str, fused: bool = False) -> Path:
    """Store a model with three matrices an expert, as the hub has them, or fused."""
    build.save(model, folder, dtype=dtype)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    count = model.config.num_experts
    separate = split_experts(tensors, count)
    save_file(fuse_experts(separate, count) if fused else separate, path, metadata={"format": "pt"})
    return folder


def split_experts(tensors: dict[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Cut what is fused into three matrices an expert; leave what is separate."""
    found = {}
    for name, value in tensors.items():
        path, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for expert in range(count):
                gate, up = value[expert].chunk(2)
                found[f"{path}.{expert}.gate_proj.weight"] = gate.clone()
                found[f"{path}.{expert}.up_proj.weight"] = up.clone()
        elif last == "down_proj" and path.endswith("experts"):
            for expert in range(count):
                found[f"{path}.{expert}.down_proj.weight"] = value[expert].clone()
        else:
            found[name] = value
    return found


def fuse_experts(tensors: dict[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Stack separate matrices as transformers 5 holds them in memory."""
    found = {name: value for name, value in tensors.items() if ".experts." not in name}
    for path in {name.split(".experts.")[0] for name in tensors if ".experts." in name}:
        gate, up, down = (
            torch.stack([tensors[f"{path}.experts.{e}.{one}.weight"] for e in range(count)])
            for one in PROJECTIONS
        )
        found[f"{path}.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
        found[f"{path}.experts.down_proj"] = down
    return found


def spell_as_before_5(config: dict[str, Any]) -> None:
    """Spell a config as published files do, which mlx-lm needs."""
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")


def truth(folder: Path, *, attention: str = "eager") -> Qwen3MoeForCausalLM:
    """Return transformers' model of a folder in float32, from whatever form it is stored in."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    plain = {key: value for key, value in config.items() if key not in build.SECTIONS}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**plain, attn_implementation=attention)).eval()
    files: dict[str, mx.array] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        files |= mx.load(str(path))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(stored(files, name, parameter.shape)))
    return model


def stored(files: dict[str, mx.array], name: str, shape: torch.Size) -> np.ndarray:
    """Return a parameter of transformers from any of the forms."""
    if name in files:
        return widened(files, name, shape[-1])
    path, _, last = name.rpartition(".")
    parts = ["gate_proj", "up_proj"] if last == "gate_up_proj" else ["down_proj"]
    wanted = [projection(files, path.removesuffix(".experts"), one, shape) for one in parts]
    return np.concatenate(wanted, axis=1)


def projection(files: dict[str, mx.array], path: str, name: str, shape: torch.Size) -> np.ndarray:
    stacked = f"{path}.switch_mlp.{name}.weight"
    if stacked in files:
        return widened(files, stacked, shape[-1])
    names = [f"{path}.experts.{expert}.{name}.weight" for expert in range(shape[0])]
    return np.stack([widened(files, one, shape[-1]) for one in names])


def widened(files: dict[str, mx.array], name: str, columns: int) -> np.ndarray:
    weight, module = files[name], name.removesuffix(".weight")
    if f"{module}.scales" in files:
        scales, biases = files[f"{module}.scales"], files.get(f"{module}.biases")
        weight = build.unpacked(weight, scales, biases, columns=columns)
    return np.array(weight.astype(mx.float32))


def activations(model: Qwen3MoeForCausalLM, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the output of every module that has one of its own, (1, L, …), by forward hooks."""
    found: dict[str, np.ndarray] = {}

    def listen(name: str) -> Any:
        def note(module: Any, args: Any, output: Any) -> None:
            value = (output[0] if isinstance(output, tuple) else output).float().numpy()
            flat = name.endswith((".mlp.gate", ".mlp.experts"))  # (B*L, …)
            found[name] = value.reshape(*tokens.shape, -1) if flat else value

        return note

    silent = ("", "model", "model.layers")
    hooks = [
        module.register_forward_hook(listen(name))
        for name, module in model.named_modules()
        if name not in silent and not name.endswith(("rotary_emb", "self_attn", "mlp"))
    ]
    build.logits(model, tokens)
    for hook in hooks:
        hook.remove()
    # The experts of transformers share one activation, which sees no tokens of its own.
    return {name: value for name, value in found.items() if not name.endswith("experts.act_fn")}


def settled(model: Qwen3MoeForCausalLM, tokens: np.ndarray) -> bool:
    """Say whether no router is near a tie on these tokens, nor on their greedy continuation.

    Where one is, right engines choose other experts, and their logits have nothing to do with each
    other.
    """
    count = model.config.num_experts_per_tok
    if count == model.config.num_experts:
        return True
    parts = [tokens, tokens[:, : build.SHORT]]
    rows = [np.concatenate([part, build.greedy(model, part)[0]], axis=1) for part in parts]
    for row in [row for part in rows for row in part]:
        for name, logits in activations(model, row[None]).items():
            if name.endswith("mlp.gate"):
                ranked = -np.sort(-logits, axis=-1)
                if (ranked[..., count - 1] - ranked[..., count]).min() < CLEAR:
                    return False
    return True
