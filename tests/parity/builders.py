"""Tiny checkpoints and hand-made stages, for the tests of the judging."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep.fast.model import load as load_fast
from lockstep.parity.noise.random_checkpoint import write_checkpoint
from lockstep.parity.replaying.recorder import Node, Stage
from lockstep.reference import ops
from lockstep.reference.model import Model
from lockstep.reference.model import load as load_reference

CONFIG = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,  # 4 * 16 is not 32
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "attention_bias": True,
}
TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])


def checkpoint(folder: Path, *, bits: int | None = None, **changes: Any) -> Path:
    """Write a random checkpoint, float32 unless it is packed."""
    return write_checkpoint(folder, CONFIG | changes, seed=7, stored="float32", bits=bits)


def pair(path: Path, backend: str = "cpu", dtype: str = "float32") -> tuple[Any, Any]:
    """Load the reference and a port."""
    return load_reference(path, dtype=dtype), load_fast(path, dtype=dtype, backend=backend)


def planted(path: Path, **wrong: Any) -> Model:
    """Return the reference with some operations replaced."""
    changed = SimpleNamespace(**{name: getattr(ops, name) for name in ops.__all__} | wrong)
    return Model(load_reference(path).checkpoint, dtype="float32", ops=changed)


def stage(*nodes: Node, **taps: np.ndarray) -> Stage:
    return Stage(list(nodes), taps)


def node(op: str, output: Any, *inputs: Any, **options: Any) -> Node:
    return Node(op, inputs, options, np.asarray(output))
