"""Measure what judging costs, in units of the reference's own work, on a layer of Qwen3-0.6B.

    OPENBLAS_NUM_THREADS=1 python -m lockstep.parity.noise.cost

Processor time, the least of several runs.
"""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lockstep.parity.noise.random_checkpoint import write_checkpoint
from lockstep.parity.replaying.oracle import Oracle, OracleStage
from lockstep.reference import model as reference

CONFIG = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
TOKENS = np.arange(64)[None]
FUSED = ("scores", "probs", "act_fn")  # what a fused port does not dump
RUNS = 5


def least(run: Callable[[], Any]) -> float:
    """Return the processor time of the quickest of several runs."""
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def recorded(oracle: Oracle) -> tuple[list[OracleStage], dict[str, np.ndarray]]:
    """Run the oracle; return its stages, and the taps of a port that computes as it does."""
    stages = list(oracle.stages(TOKENS))
    taps = {name: value for stage in stages for name, value in stage.recorded.taps.items()}
    return stages, {name: value for name, value in taps.items() if not name.endswith(FUSED)}


def cost(folder: Path, dtype: str) -> tuple[float, float]:
    """Return the seconds of the reference alone, and of the judging that comes on top."""
    oracle = Oracle(reference.load(folder, dtype=dtype), dtype)
    stages, port = recorded(oracle)
    alone = least(lambda: reference.load(folder, dtype=dtype).forward(TOKENS))
    return alone, least(lambda: [oracle.judge(stage, port, "") for stage in stages])


def main() -> None:
    for stored, dtype in (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16",) * 2):
        with TemporaryDirectory() as folder:
            path = write_checkpoint(Path(folder), CONFIG, seed=0, stored=stored)
            alone, judging = cost(path, dtype)
        print(
            f"{stored} weights, {dtype}: {alone * 1e3:.0f} ms, a check {1 + judging / alone:.1f}x"
        )


if __name__ == "__main__":
    main()
