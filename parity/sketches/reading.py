"""What the operation of each tap reads, by the reference's file of a model run on shapes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from lockstep.parity.replaying.recorder import Recorder, Stage
from lockstep.parity.replaying.shape_ops import SHAPE_OPS
from lockstep.parity.replaying.taps import Shapes
from lockstep.reference.model import Model


def reads_of(model: Any, ignore_config: Collection[str] = ()) -> dict[str, Sequence[str]]:
    """Return the taps that each tap of a model is made from; `model` is one, or where it lies.

    Raises: InputError if it cannot be opened.
    """
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    if not hasattr(model, "checkpoint"):
        checkpoint = open_checkpoint(model, ignore_config=ignore_config)
    else:
        checkpoint = model.checkpoint
    recorder = Recorder(SHAPE_OPS)
    shapes: Any = Shapes(checkpoint)
    nothing = np.zeros((1, 2), int)
    for _ in Model(shapes, dtype="float32", ops=recorder).stages(
        nothing, positions=nothing, trace=recorder.tap
    ):
        pass
    return sources_in(recorder.take())


def sources_in(stage: Stage) -> dict[str, Sequence[str]]:
    """Return the nearest taps before each; two names of one value have the same."""
    names: dict[int, str] = {}
    for name, value in stage.taps.items():
        names.setdefault(id(value), name)
    made = {id(node.output): node for node in stage.nodes}
    found: dict[str, Sequence[str]] = {}
    for name, value in stage.taps.items():
        waiting, seen, sources = [made[id(value)]], {id(value)}, dict[str, None]()
        while waiting:
            for one in waiting.pop().inputs:
                if id(one) in seen or id(one) not in made:
                    continue
                seen.add(id(one))
                if id(one) in names:
                    sources[names[id(one)]] = None
                else:
                    waiting.append(made[id(one)])
        found[name] = [*sources]
    return found
