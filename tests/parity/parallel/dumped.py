"""Dumps of ranks in memory, as a port would write them, made by the reference's own ranks."""

import json
from pathlib import Path

import numpy as np

from lockstep.parity.dumps.dump import Dump

WITNESSES = Path(__file__).parents[2] / "witnesses"
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
STEP = [7]


def taps_of(model, *, steps=(STEP,)) -> list[dict[str, np.ndarray]]:
    """Return what each rank taps of the prompt and of steps behind it."""
    taps, cache = [{} for _ in model.ranks], model.make_cache()
    for number, fed in enumerate((TOKENS, *steps)):
        prefix = f"step.{number}/" if number else ""

        def keep(name, value, prefix=prefix):
            for rank, held in enumerate(taps):
                held[prefix + name] = value[rank] if isinstance(value, tuple) else value

        model.forward(np.array([fed]), cache=cache, trace=keep)
    return taps


def dump_of(taps: dict[str, np.ndarray], **about) -> Dump:
    """Return taps as a bare dump that says what `about` does, beside its tokens."""
    steps = max((int(name.split("/")[0][5:]) for name in taps if "step." in name), default=0)
    said = {"tokens": TOKENS, "decoded": STEP * steps} | about
    said = {key: json.dumps(one) for key, one in said.items() if one is not None}
    return Dump(
        Path("port"), {name: one.shape for name, one in taps.items()}, taps.__getitem__, said
    )
