"""The shapes of what each rank makes, found by running the model's file on shapes alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from lockstep.parity.replaying.shape_ops import SHAPE_OPS
from lockstep.parity.replaying.taps import STANDINS, Shapes
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.parallel.each import Each
from lockstep.reference.parallel.model import ParallelModel

Shape = tuple[int, ...]


def shapes_of_ranks(checkpoint: Checkpoint, ranks: int, *, length: int) -> list[dict[str, Shape]]:
    """Return for each rank the taps that it makes of a prompt of `length` tokens, with shapes."""
    taken = asdict(checkpoint.config).values()
    standin = next(size for size in STANDINS if size not in taken)
    whole: Any = Shapes(checkpoint)
    model = ParallelModel(whole, ranks=ranks, dtype="float32", ops=SHAPE_OPS)
    found: list[dict[str, Shape]] = [{} for _ in range(ranks)]

    def note(name: str, value: Any) -> None:
        each = value if isinstance(value, Each) else [value] * ranks
        for taps, one in zip(found, each, strict=True):
            taps[name] = tuple(length if size == standin else size for size in one.shape)

    nothing = np.zeros((1, standin), int)  # all at position 0, which every model has
    model.forward(nothing, positions=nothing, trace=note)
    return found
