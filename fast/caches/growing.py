"""A cache that grows in steps: most tokens are written in place, without copying the rest."""

from collections.abc import Callable
from typing import Any

from lockstep.fast.shapes import Array, Keys, NewKeys, Values
from lockstep.reference.tokenizer.held_positions import HeldPositions

STEP = 256  # tokens of room that are added at a time


class GrowingCache:
    """Keys after rope and raw values of each layer in buffers of (B, G, room, D).

    `zeros(shape, dtype)` makes a buffer on the backend. One cache serves one batch; `positions`
    says where each key stands.
    """

    def __init__(self, layers: int, zeros: Callable[[tuple[int, ...], Any], Array]):
        self.zeros = zeros
        self.key_buffers: list[Array | None] = [None] * layers
        self.value_buffers: list[Array | None] = [None] * layers
        self.positions = HeldPositions()

    def update(self, ops: Any, layer: int, keys: NewKeys, values: NewKeys) -> tuple[Keys, Values]:
        """Write one layer's new keys and values; return all that the layer holds."""
        held = [
            self.write(ops, buffers, layer, new)
            for buffers, new in ((self.key_buffers, keys), (self.value_buffers, values))
        ]
        return held[0], held[1]

    def write(self, ops: Any, buffers: list[Array | None], layer: int, new: Array) -> Array:
        """Write the newest tokens behind the earlier ones; return all of them."""
        stop = self.positions.length
        start = stop - new.shape[2]
        buffer = self.with_room(ops, buffers[layer], new, start, stop)
        buffer[:, :, start:stop] = new
        buffers[layer] = buffer
        return buffer[:, :, :stop]

    def with_room(self, ops: Any, buffer: Array | None, new: Array, start: int, stop: int) -> Array:
        """Return a buffer of at least `stop` tokens with the first `start` of the old one."""
        if buffer is not None and buffer.shape[2] >= stop:
            return buffer
        batch, groups, _, width = new.shape
        room = -(-stop // STEP) * STEP - start
        blank = self.zeros((batch, groups, room, width), new.dtype)
        return blank if buffer is None else ops.concatenate(buffer[:, :, :start], blank)
