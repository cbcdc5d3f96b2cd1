"""One rank of several, started by a test: it runs models and writes what came out.

    one_rank.py RANKS OUT BACKEND MODEL[=ADAPTER] ...

Rank r writes OUT/r.npz, with the logits of a prompt and of steps behind it for each model; and
of the first the tokens of texts in flight, each with its number.
"""

import sys
from pathlib import Path

import numpy as np

from lockstep.fast.backends import backend_named
from lockstep.fast.decoding.continuous import generate
from lockstep.fast.parallel.group import join
from lockstep.fast.parallel.model import ParallelModel
from lockstep.parity.arrays import to_numpy
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.decoding.sampling import greedy
from lockstep.reference.scheduling.in_flight import Prompt

STEPS = ((0, 6), (6, 7), (7, 9))


def in_flight(model) -> np.ndarray:
    """Return number and token of all that three texts get, of which two are in flight: (T, 2)."""
    prompts = [Prompt([number + 1, 7, 5], 3 - number % 2, (), greedy) for number in range(3)]
    made = generate(model, prompts, slots=2)
    return np.array([(one.text, -1 if one.token is None else one.token) for one in made])


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
        if name == models[0]:
            found["texts"] = in_flight(model)
        found[f"{name}:whole"] = to_numpy(model.forward(tokens))
        cache = model.make_cache()
        steps = [to_numpy(model.forward(tokens[:, a:b], cache=cache)) for a, b in STEPS]
        found[f"{name}:steps"] = np.concatenate(steps, axis=1)
    np.savez(Path(out) / f"{group.rank}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
