"""The graph of every committed witness model, and what computes it."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lockstep import reference
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator, Graph, record
from lockstep.reference import ops
from lockstep.reference.model import Model

ROOT = Path(__file__).parents[3]
WITNESSES = ROOT / "tests/witnesses"
KINDS = ("models", "llama", "gpt2", "qwen3_moe", "gemma4", "adapters")
FOLDERS = [path for kind in KINDS for path in sorted((WITNESSES / kind).iterdir())]
GGUF = sorted(path for path in (WITNESSES / "gguf").glob("*.gguf") if "of-" not in path.name)
MODELS = [
    *(f"{path.parent.name}/{path.name}" for path in FOLDERS),
    *(f"gguf/{path.name}" for path in GGUF),
    "gguf/gemma4_e2b-00001-of-00003.gguf",
]
FLOAT32 = np.dtype(np.float32)
LENGTH = 20


class Run(NamedTuple):
    model: Model
    tokens: np.ndarray
    graph: Graph

    def evaluator(self, dumped: Any = (), rows: int | None = None, read: Any = None) -> Evaluator:
        read = read or Tensors(self.model.checkpoint)
        return Evaluator(self.graph, ops, FLOAT32, dict(dumped), read, rows)


@cache
def run(name: str) -> Run:
    model = loaded(name)
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, (1, LENGTH))
    return Run(model, tokens, record(model, tokens))


def loaded(name: str) -> Model:
    path = WITNESSES / name
    if not name.startswith("adapters/"):
        return reference.load(path)
    with np.load(path / "expected.npz") as kept:
        return reference.load(ROOT / str(kept["base"]), path)
