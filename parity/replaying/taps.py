"""Every tap of a model, found by running its file on shapes instead of numbers."""

from dataclasses import asdict
from typing import Any

import numpy as np

from lockstep.parity.replaying.recorder import Recorder
from lockstep.parity.replaying.shape_ops import SHAPE_OPS, blank
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.spans import Spans
from lockstep.reference.model import Model

STANDINS = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149)  # sizes that may stand for B and L


def taps_of(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Return name, shape and operation of every tap, in the order of computation."""
    taken = asdict(checkpoint.config).values()
    batch, length = [size for size in STANDINS if size not in taken][:2]
    recorder = Recorder(SHAPE_OPS)
    model = Model(Shapes(checkpoint), dtype="float32", ops=recorder)  # pyright: ignore[reportArgumentType]
    nothing = np.zeros((batch, length), int)  # all at position 0, which every model has
    for _ in model.stages(nothing, positions=nothing, trace=recorder.tap):
        pass
    stage = recorder.take()
    operations = {id(node.output): node.op for node in stage.nodes}
    return [
        {
            "name": name,
            "shape": [{batch: "B", length: "L"}.get(size, size) for size in value.shape],
            "op": operations[id(value)],
        }
        for name, value in stage.taps.items()
    ]


class Shapes:
    """A checkpoint whose tensors have a shape and no values: they take no memory."""

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint = checkpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.checkpoint, name)

    def tensor_at(self, name: str, rows: list[int]) -> np.ndarray:
        return blank(len(rows), *self.checkpoint.stored(name).shape[1:])

    def tensor(self, name: str) -> np.ndarray:
        return blank(*self.checkpoint.stored(name).shape)

    def matrix(self, name: str) -> np.ndarray:
        return self.tensor(name)

    def tensor_part(
        self, name: str, rows: Spans | None, columns: Spans | None, *, matrix: int = 0
    ) -> np.ndarray:
        shape = [*self.checkpoint.stored(name).shape][-2:]
        for axis, spans in ((0, rows), (-1, columns)):
            if spans is not None:
                shape[axis] = sum(stop - first for first, stop in spans)
        return blank(*shape)
