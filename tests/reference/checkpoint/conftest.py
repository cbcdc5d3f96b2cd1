"""A tiny Qwen3 folder that tests can spoil, and the one check that every refusal must pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from lockstep.reference.checkpoint.errors import InputError

# The keys of a published Qwen3 file, small numbers. head_dim * heads differs from hidden_size.
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "max_window_layers": 2,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 48,
}
SHAPES: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (64,),
    "self_attn.q_proj.weight": (128, 64),
    "self_attn.k_proj.weight": (64, 64),
    "self_attn.v_proj.weight": (64, 64),
    "self_attn.o_proj.weight": (64, 128),
    "self_attn.q_norm.weight": (32,),
    "self_attn.k_norm.weight": (32,),
    "post_attention_layernorm.weight": (64,),
    "mlp.gate_proj.weight": (96, 64),
    "mlp.up_proj.weight": (96, 64),
    "mlp.down_proj.weight": (64, 96),
}
Tensors = dict[str, np.ndarray]


def shapes() -> dict[str, tuple[int, ...]]:
    """Return every tensor of the tiny model, written out by hand rather than by our own code."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (48, 64)}
    for layer in range(2):
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in SHAPES.items()}
    return found | {"model.norm.weight": (64,), "lm_head.weight": (48, 64)}


def write(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> Path:
    """Write a file with the safetensors package, which takes raw bytes of every type."""
    flat = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in tensors.items()}
    path.write_bytes(save(flat, metadata))
    return path


class Model:
    """A folder under test: `config` and `tensors` may be changed before `save`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: dict[str, Any] = dict(CONFIG)
        rng = np.random.default_rng(0)
        self.tensors: Tensors = {
            name: rng.standard_normal(shape, dtype=np.float32).astype(ml_dtypes.bfloat16)
            for name, shape in shapes().items()
        }

    def save(self) -> Path:
        self.path.mkdir(exist_ok=True)
        self.save_config()
        write(self.path / "model.safetensors", self.tensors, {"format": "pt"})
        return self.path

    def save_config(self) -> Path:
        self.path.mkdir(exist_ok=True)
        (self.path / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        return self.path / "config.json"

    def save_shards(self, count: int = 2) -> dict[str, Any]:
        """Save with an index and return the index, which a test may change and write again."""
        self.path.mkdir(exist_ok=True)
        self.save_config()
        names = sorted(self.tensors)
        weight_map = {}
        for part in range(count):
            shard = f"model-{part + 1:05d}-of-{count:05d}.safetensors"
            held = names[part::count]
            write(self.path / shard, {name: self.tensors[name] for name in held})
            weight_map |= dict.fromkeys(held, shard)
        size = sum(array.nbytes for array in self.tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        self.save_index(index)
        return index

    def save_index(self, index: Any) -> None:
        text = json.dumps(index)
        (self.path / "model.safetensors.index.json").write_text(text, encoding="utf-8")

    def quantize(self, module: str, *, bits: int, group_size: int, dtype: Any = np.float16) -> None:
        """Replace a weight by random codes, scales and biases of the shapes MLX gives them."""
        rows, columns = self.tensors[f"{module}.weight"].shape
        rng = np.random.default_rng(bits)
        codes = rng.integers(0, 2**32, (rows, columns * bits // 32), dtype=np.uint32)
        scales = rng.standard_normal((2, rows, columns // group_size)).astype(dtype)
        self.tensors[f"{module}.weight"] = codes
        self.tensors[f"{module}.scales"], self.tensors[f"{module}.biases"] = scales

    def quantize_all(self, *, bits: int, group_size: int) -> None:
        for name in [n for n, array in self.tensors.items() if array.ndim == 2]:
            self.quantize(name.removesuffix(".weight"), bits=bits, group_size=group_size)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path / "model")


@pytest.fixture(scope="session")
def save_tensors() -> Callable[..., Path]:
    return write


@pytest.fixture
def refuses() -> Callable[[Callable[[], object], str], str]:
    """Return a check: the call raises InputError, in one clean line that holds `core`."""

    def check(call: Callable[[], object], core: str) -> str:
        with pytest.raises(InputError) as caught:
            call()
        line = str(caught.value)
        assert core in line
        assert line.isprintable() and len(line.encode()) <= 400
        return line

    return check
