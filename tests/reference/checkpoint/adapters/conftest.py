"""A small adapter in either format that tests can spoil."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from lockstep.reference.checkpoint.adapters import Adapters, open_adapter
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint

QUERY = "model.layers.1.self_attn.q_proj"  # 64 inputs, 128 outputs
DOWN = "model.layers.0.mlp.down_proj"  # 96 inputs, 64 outputs
RANK = 2


class Folder:
    """`config` and `tensors` may be changed before `open`."""

    def __init__(self, path: Path, base: Checkpoint, file: str, config: dict[str, Any]):
        self.path, self.base, self.file, self.config = path, base, file, config
        self.tensors: dict[str, np.ndarray] = {}

    def save(self) -> Path:
        self.path.mkdir()
        (self.path / "adapter_config.json").write_text(json.dumps(self.config), encoding="utf-8")
        flat = {name: np.ascontiguousarray(value) for name, value in self.tensors.items()}
        (self.path / self.file).write_bytes(save(flat))
        return self.path

    def open(self, **options: Any) -> Adapters:
        return open_adapter(self.save(), self.base, **options)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


@pytest.fixture
def base(model: Any) -> Checkpoint:
    return open_checkpoint(model.save())


@pytest.fixture
def mlx(tmp_path: Path, base: Checkpoint) -> Folder:
    """A LoRA of rank 2 and scale 20 as mlx-lm saves it."""
    config = {
        "fine_tune_type": "lora",
        "num_layers": 2,
        "lora_parameters": {"rank": RANK, "scale": 20.0, "dropout": 0.0},
        "model": "../../../etc",
        "iters": 100,
    }
    folder = Folder(tmp_path / "adapter", base, "adapters.safetensors", config)
    for path, inputs, outputs in ((QUERY, 64, 128), (DOWN, 96, 64)):
        folder.tensors[f"{path}.lora_a"] = draw(inputs, RANK)
        folder.tensors[f"{path}.lora_b"] = draw(RANK, outputs)
    return folder


@pytest.fixture
def peft(tmp_path: Path, base: Checkpoint) -> Folder:
    """A LoRA of rank 2 and alpha 6 as PEFT saves it."""
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 6,
        "target_modules": ["q_proj", "down_proj"],
        "base_model_name_or_path": "http://nowhere.invalid/../model",
        "auto_mapping": {"parent_library": "antigravity"},
        "bias": "none",
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    folder = Folder(tmp_path / "adapter", base, "adapter_model.safetensors", config)
    for path, inputs, outputs in ((QUERY, 64, 128), (DOWN, 96, 64)):
        folder.tensors[f"base_model.model.{path}.lora_A.weight"] = draw(RANK, inputs)
        folder.tensors[f"base_model.model.{path}.lora_B.weight"] = draw(outputs, RANK)
    return folder
