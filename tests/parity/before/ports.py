"""Weights of ports that were written wrongly, by hand, with the safetensors package."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from lockstep.parity.before.weights import WeightFinding, WeightReport, compare_weights
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.sharded import Shards

WITNESSES = Path(__file__).parents[2] / "witnesses"
BFLOAT16, FLOAT32 = "models/tied_bfloat16", "models/untied_float32"
SPARSE, STACKED, GPT2 = "qwen3_moe/separate", "qwen3_moe/fused", "gpt2/variant"
MODELS = [
    *(BFLOAT16, FLOAT32, SPARSE, STACKED, GPT2, "gpt2/original", "gpt2/packed", "qwen3_moe/packed"),
    *("gemma4/dense", "gemma4/sparse", "gemma4/effective", "llama/biased_llama3"),
    *("models/affine_mixed", "models/minifloats_mixed"),
]
FIRST = "model.layers.0."
Tensors = dict[str, np.ndarray]


def tensors(model: str | Path) -> Tensors:
    shards = Shards(WITNESSES / model)
    return {name: np.array(shards.read(name)) for name in shards.names}


def compared(model: str | Path, changed: Tensors, folder: Path) -> WeightReport:
    path = folder / "port.safetensors"
    save_file({name: np.ascontiguousarray(value) for name, value in changed.items()}, path)
    return compare_weights(open_checkpoint(WITNESSES / model), path)


def only(report: WeightReport) -> WeightFinding:
    """Return the one thing that was found."""
    assert len(report.findings) == 1, [str(one) for one in report.findings]
    return report.findings[0]


def theirs(finding: WeightFinding) -> list[str]:
    return sorted(name for _, name in finding.tensors)


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """By loop: row i of the first half of a head, then row i of its second half."""
    wide = len(rows) // heads
    order = [h * wide + i + half for h in range(heads) for i in range(wide // 2)
             for half in (0, wide // 2)]  # fmt: skip
    return rows[order]


def exchange(one: str, other: str):
    def change(port: Tensors) -> None:
        for name in [name for name in port if f".{one}." in name]:
            there = name.replace(one, other)
            port[name], port[there] = port[there], port[name]

    return change


def zeroed(port: Tensors) -> None:
    name = FIRST + "mlp.down_proj.weight"
    port[name] = np.zeros_like(port[name])
