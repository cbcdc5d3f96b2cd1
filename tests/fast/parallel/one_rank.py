"""One rank of several, started by a test: it runs models and writes what came out.

    one_rank.py RANKS OUT BACKEND MODEL[=ADAPTER] ...

Rank r writes OUT/r.npz, with the logits of a prompt and of steps behind it for each model.
"""

import sys
from pathlib import Path

import numpy as np

from lockstep.fast.backends import backend_named
from lockstep.fast.parallel.group import join
from lockstep.fast.parallel.model import ParallelModel
from lockstep.parity.arrays import to_numpy
from lockstep.reference.checkpoint.checkpoint import open_checkpoint

STEPS = ((0, 6), (6, 7), (7, 9))


def main(ranks: str, out: str, kind: str, *models: str) -> None:
    group, found = join(int(ranks)), {}
    for name in models:
        path, _, adapter = name.partition("=")
        backend = backend_named(kind, dtype="float32", device=None)
        checkpoint = open_checkpoint(path)
        model = ParallelModel(checkpoint, group=group, dtype="float32", backend=backend)
        model = model.with_adapter(adapter) if adapter else model
        rng = np.random.default_rng(7)
        tokens = rng.integers(0, checkpoint.config.vocab_size, (2, 9))
        found[f"{name}:whole"] = to_numpy(model.forward(tokens))
        cache = model.make_cache()
        steps = [to_numpy(model.forward(tokens[:, a:b], cache=cache)) for a, b in STEPS]
        found[f"{name}:steps"] = np.concatenate(steps, axis=1)
    np.savez(Path(out) / f"{group.rank}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
