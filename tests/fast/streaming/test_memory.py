"""What a process takes whose experts stay on the disk. Truth: the system's own count of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.parity.bench.random_bits import write_random_bits
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.sampled import sampled

WITNESS = Path(__file__).parents[2] / "witnesses/qwen3_moe/packed"
SIZES = {
    "hidden_size": 256, "moe_intermediate_size": 512, "num_experts": 128, "num_hidden_layers": 4,
    "num_experts_per_tok": 4, "head_dim": 64, "mlp_only_layers": [], "vocab_size": 128,
}  # fmt: skip
BUDGET, SLACK = 6_000_000, 16_000_000  # ten processes grew by 7.7 to 15.2 MB
# A small model first brings libraries and kernels. From then on the system counts anew.
CHILD = """
import json, sys
import numpy as np
from lockstep import fast
from lockstep.parity.bench.footprint import begin_anew, footprint

def written(path, backend, **told):
    model = fast.load(path, backend=backend, **told)
    cache, tokens = model.make_cache(), [[(7 * one) % 100 for one in range(64)]]
    for step in range(4):
        np.array(model.forward(tokens, cache=cache, last_only=True))
        tokens = [[step + 1]]
    return model

warm, path, backend, budget = sys.argv[1:]
written(warm, backend)
begin_anew()
before = footprint()
model = written(path, backend, **({"expert_budget": int(budget)} if int(budget) else {}))
grew = footprint().peak - before.now - before.files
print(json.dumps([grew, model.streamed.report() if model.streamed else None]))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, Path]:
    """A model of random bits, of which nearly all is experts; and a small one of such matrices."""
    config = json.loads((WITNESS / "config.json").read_text()) | SIZES
    folders = tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("sparse")
    for folder, more in zip(folders, ({"num_hidden_layers": 1, "num_experts": 5}, {}), strict=True):
        write_random_bits(folder, config | more, done=lambda name: None)
    return folders


def grown(small: Path, path: Path, backend: str, budget: int) -> tuple[int, dict | None]:
    """Return by how many bytes a process grew at most that loaded a model and wrote with it."""
    words = [sys.executable, "-c", CHILD, small, path, backend, budget]  # 0 is no budget
    ran = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return tuple(json.loads(ran.stdout))


@sampled(0)
@pytest.mark.parametrize("backend", ["cpu", "mlx"])
def test_a_process_takes_the_budget_and_what_is_no_expert(models, backend):
    found, report = grown(*models, backend, BUDGET)
    checkpoint = open_checkpoint(models[1])
    dense = sum(checkpoint.stored(name).nbytes for name in checkpoint.names) - report["experts"]
    assert report["experts"] > 3 * (BUDGET + dense + SLACK) and report["bytes_read"] > 5 * BUDGET
    assert found <= BUDGET + dense + SLACK, f"grew by {found} bytes"
    whole, unreported = grown(*models, backend, 0)
    # A count that does not see the experts would pass as well.
    assert whole > report["experts"] and unreported is None, f"grew by {whole} bytes"
