"""The right checkpoints that every engine runs, and the files of each that an engine opens.

Nothing of Lockstep is imported here. Weights are random, of bfloat16's bits, from fixed seeds.
"""

import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.peers.test_gguf_gemma4_peers import SIZES as GEMMA_SIZES
from tests.peers.test_llama_cpp_peers import without_tokenizer
from tests.witnesses import build, build_gemma4, build_llama, gguf_files

# Heads times their width is not the hidden width; 1 < key heads < heads; whole blocks of 32; the
# MLP's matrices are square.
SIZES: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 130,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SIZES | {"model_type": "llama", "attention_bias": True, "rope_parameters": LLAMA3},
    "qwen3": SIZES
    | {
        "model_type": "qwen3",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    # Sliding layers beside full ones, and a scale of the embedding.
    "gemma4": build_gemma4.DENSE
    | GEMMA_SIZES
    | {
        "model_type": "gemma4_text",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
RANK, ALPHA, ADAPTED = 4, 12.0, ("q_proj", "v_proj", "down_proj")
LENGTH = 24  # beyond every window and original length


@dataclass(frozen=True)
class Checkpoint:
    """The keys of a config and the tensors by their names, as transformers has them.

    `adapter` holds the factors of a LoRA adapter, which are no part of `tensors`.
    """

    keys: dict[str, Any]
    tensors: dict[str, np.ndarray]
    adapter: dict[str, np.ndarray] = field(default_factory=dict)

    def copy(self) -> "Checkpoint":
        tensors = {name: value.copy() for name, value in self.tensors.items()}
        return replace(self, keys=json.loads(json.dumps(self.keys)), tensors=tensors)

    def named(self, ending: str) -> list[str]:
        """Return the names of the tensors that end so, layer by layer."""
        return [name for name in self.tensors if name.endswith(ending)]

    def model(self) -> Any:
        """Return the model of transformers, in float32. Every tensor has to be there."""
        chosen = AutoConfig.for_model(**self.keys)
        model = AutoModelForCausalLM.from_config(chosen, dtype=torch.float32).eval()
        values = {name: torch.from_numpy(value) for name, value in self.tensors.items()}
        if self.keys["tie_word_embeddings"]:
            values.pop("lm_head.weight", None)
        rest = model.load_state_dict(values, strict=False)
        tied = ["lm_head.weight"] if self.keys["tie_word_embeddings"] else []
        if rest.missing_keys != tied or rest.unexpected_keys:
            raise ValueError(f"{self.keys['model_type']}: {rest}")
        return model


@cache
def right(name: str) -> Checkpoint:
    """Return a right checkpoint. Its numbers are those of bfloat16."""
    keys, number = CONFIGS[name], list(CONFIGS).index(name)
    draw = build_gemma4.random_model if name == "gemma4" else None
    plain = {key: value for key, value in keys.items() if key != "model_type"}
    model = draw(number, **plain) if draw else build_llama.random_model(number, keys)
    tensors = {
        key: value.detach().bfloat16().float().numpy()
        for key, value in model.state_dict().items()
        if not (keys.get("tie_word_embeddings", True) and key == "lm_head.weight")
    }
    keys = {"tie_word_embeddings": True} | keys
    return Checkpoint(keys, tensors)


def adapted(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with the factors of an adapter beside it."""
    rng = np.random.default_rng(7)
    factors = {}
    for name in checkpoint.tensors:
        module = name.removesuffix(".weight")
        if module.endswith(ADAPTED):
            rows, columns = checkpoint.tensors[name].shape
            first = rng.standard_normal((RANK, columns)) / columns**0.5
            second = rng.standard_normal((rows, RANK)) * 0.2
            factors[f"{module}.lora_A"] = first.astype(np.float32)
            factors[f"{module}.lora_B"] = second.astype(np.float32)
    return replace(checkpoint, adapter=factors)


def merged(checkpoint: Checkpoint, scale: float = ALPHA / RANK) -> Checkpoint:
    """Return a checkpoint with its adapter in its matrices, `scale` times."""
    tensors = dict(checkpoint.tensors)
    for first in [name for name in checkpoint.adapter if name.endswith("lora_A")]:
        module = first.removesuffix(".lora_A")
        change = checkpoint.adapter[f"{module}.lora_B"] @ checkpoint.adapter[first]
        tensors[f"{module}.weight"] = tensors[f"{module}.weight"] + np.float32(scale) * change
    return replace(checkpoint, tensors=tensors, adapter={})


def write_adapter(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write the adapter as PEFT does."""
    folder.mkdir(parents=True)
    tensors = {
        f"base_model.model.{name}.weight": value for name, value in checkpoint.adapter.items()
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": [*ADAPTED],
        "bias": "none", "lora_dropout": 0.0, "fan_in_fan_out": False, "use_rslora": False,
        "use_dora": False, "task_type": "CAUSAL_LM",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_folder(checkpoint: Checkpoint, folder: Path, dtype: str) -> Path:
    """Write a folder as transformers does, the config spelled as mlx-lm wants it too."""
    build.save(checkpoint.model(), folder, dtype=dtype)
    if checkpoint.keys["model_type"] == "gemma4_text":
        build.edit_config(folder, build_gemma4.spell_as_published)
    else:
        build.edit_config(folder, lambda config: build_llama.spell_as_before_5(config, "rope_type"))
    return folder


def write_file(checkpoint: Checkpoint, path: Path, kind: str) -> Path:
    """Write a GGUF file as llama.cpp's converter does.

    A matrix that blocks of `kind` do not hold without loss stays in float32.
    """
    whole = {
        name
        for name, value in checkpoint.tensors.items()
        if kind != "F32" and value.ndim == 2 and not holds(value, kind)
    }
    model = checkpoint.model()
    add = without_tokenizer(model)
    if checkpoint.keys["model_type"] == "gemma4_text":
        add = gemma_without_tokenizer(checkpoint.keys["vocab_size"])
    gguf_files.write_gguf(
        path, model, lambda name: "F32" if name in whole else kind, tokenizer=add, fused=False
    )
    return path


def gemma_without_tokenizer(vocabulary: int) -> Any:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(vocabulary)

    return add


def holds(values: np.ndarray, kind: str) -> bool:
    """Say whether blocks hold a matrix without loss."""
    return bool((packed(values, kind) == values).all())


def packed(values: np.ndarray, kind: str) -> np.ndarray:
    """Return what blocks make of a matrix."""
    type = gguf.GGMLQuantizationType[kind]
    raw = gguf.quants.quantize(values, type)
    return np.asarray(gguf.quants.dequantize(raw, type), np.float32).reshape(values.shape)


def in_blocks(checkpoint: Checkpoint, kind: str) -> Checkpoint:
    """Return a checkpoint with the values that a file in blocks holds."""
    tensors = {
        name: packed(value, kind) if value.ndim == 2 else value
        for name, value in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)
