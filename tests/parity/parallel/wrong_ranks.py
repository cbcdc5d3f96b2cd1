"""One rank of a port with bugs, started by a test: it writes what each bug makes of a prompt.

    wrong_ranks.py RANKS OUT MODEL BUG ...

Rank r writes OUT/BUG.r.safetensors. The bugs are made in `fast`, as a porter would make them.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.fast.backends import backend_named
from lockstep.fast.parallel import model as model_module
from lockstep.fast.parallel import run as run_module
from lockstep.fast.parallel.group import Group, SummingOps, join
from lockstep.fast.parallel.run import ParallelRun
from lockstep.parity.dumps.tracing import trace_run
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
ROUNDED_APART = "right, but rounded apart"
RIGHT = {
    "linear": ParallelRun.linear,
    "spans": RankCheckpoint.spans,
    "zero_unless": run_module.zero_unless,
    "tensor": RankCheckpoint.tensor,
    "ops": SummingOps.__getattr__,
    "all_sum": Group.all_sum,
}


def parted(run: ParallelRun, path: str) -> bool:
    return path.endswith(("o_proj", "down_proj", "c_proj"))


def no_sum(ends: tuple[str, ...]) -> Any:
    def linear(self: ParallelRun, x: Any, path: str) -> Any:
        if not path.endswith(ends):
            return RIGHT["linear"](self, x, path)
        bias = self.weights.get(f"{path}.bias")
        return self.tap(path, self.projected(x, self.weights[f"{path}.weight"], bias, path))

    return linear


def bias_in_part(self: ParallelRun, x: Any, path: str) -> Any:
    if not parted(self, path):
        return RIGHT["linear"](self, x, path)
    bias = self.weights.get(f"{path}.bias")
    part = self.projected(x, self.weights[f"{path}.weight"], bias, path)
    return self.tap(path, self.group.all_sum(part))


def summed_twice(self: ParallelRun, x: Any, path: str) -> Any:
    """No bug of the list: two sums behind each other."""
    if not path.endswith("o_proj"):
        return RIGHT["linear"](self, x, path)
    part = self.projected(x, self.weights[f"{path}.weight"], None, path)
    return self.tap(path, self.group.all_sum(self.group.all_sum(part)))


def contiguous(self: RankCheckpoint, module: str) -> Any:
    spans = RIGHT["spans"](self, module)
    if not module.endswith("c_attn"):
        return spans
    whole = self.whole.stored(f"{module}.weight").shape[0] // self.ranks
    return ((self.rank * whole, self.rank * whole + whole),)


def in_turns(self: RankCheckpoint, module: str) -> Any:
    if not module.endswith(("k_proj", "v_proj")):
        return RIGHT["spans"](self, module)
    wide = self.whole.config.head_dim
    head = self.rank % self.whole.config.num_key_value_heads
    return ((head * wide, (head + 1) * wide),)


def gates_as_one(self: RankCheckpoint, name: str) -> Any:
    """Put gate and up above each other, and give rank r part r of N: half of it is its gate."""
    if ".mlp.gate_proj." not in name and ".mlp.up_proj." not in name:
        return RIGHT["tensor"](self, name)
    home = name.partition(".mlp.")[0]
    both = [
        np.asarray(self.whole.tensor(f"{home}.mlp.{one}_proj.weight")) for one in ("gate", "up")
    ]
    part = np.split(np.concatenate(both), self.ranks)[self.rank]
    return np.split(part, 2)[".mlp.up_proj." in name]


def stream_in_part(self: SummingOps, name: str) -> Any:
    """Add the stream to each rank's part, so that the sum over ranks has it once for each."""
    operation = RIGHT["ops"](self, name)
    if name != "add":
        return operation
    return lambda stream, summed: operation(self.group.all_sum(stream), summed)


def rounded_apart(self: Group, part: Any) -> Any:
    """Give each rank a sum that is rounded in a way of its own, as other back ends may: no bug."""
    return RIGHT["all_sum"](self, part) * (1 + self.rank * 2.0**-23)


def plant(bug: str) -> None:
    """Make one of the bugs, and undo the one before."""
    ParallelRun.linear = RIGHT["linear"]
    RankCheckpoint.spans = RIGHT["spans"]
    RankCheckpoint.tensor = RIGHT["tensor"]
    SummingOps.__getattr__ = RIGHT["ops"]
    Group.all_sum = rounded_apart if bug == ROUNDED_APART else RIGHT["all_sum"]
    run_module.zero_unless = RIGHT["zero_unless"]
    if bug == "tp-fused-shard-contiguous of gates":
        RankCheckpoint.tensor = gates_as_one
    if bug == "tp-residual-in-partial":
        SummingOps.__getattr__ = stream_in_part
    if bug in LINEAR:
        ParallelRun.linear = LINEAR[bug]
    if bug in SPANS:
        RankCheckpoint.spans = SPANS[bug]
    if bug == "tp-vocab-parallel-mask":
        run_module.zero_unless = lambda here, rows: rows


LINEAR = {
    "tp-allreduce-missing": no_sum(("o_proj", "down_proj", "c_proj")),
    "tp-allreduce-missing of attention": no_sum(("o_proj", "attn.c_proj")),
    "tp-allreduce-missing of mlp": no_sum(("down_proj", "mlp.c_proj")),
    "tp-rowparallel-bias": bias_in_part,
    "another": summed_twice,
}
SPANS = {"tp-fused-shard-contiguous": contiguous, "tp-kv-shard": in_turns}


def main(ranks: str, out: str, path: str, *bugs: str) -> None:
    group = join(int(ranks))
    backend = backend_named("mlx", dtype="float32", device=None)
    for bug in bugs:
        plant(bug)
        model = model_module.ParallelModel(
            open_checkpoint(path), group=group, dtype="float32", backend=backend
        )
        target = Path(out) / f"{bug}.{group.rank}.safetensors"
        trace_run(model, np.array(TOKENS).tolist(), target, globs=None, decode=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
