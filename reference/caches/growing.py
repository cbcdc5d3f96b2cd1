"""The simplest correct cache: every step appends its keys and values to all earlier ones."""

from typing import Any

from lockstep.reference.shapes import Keys, NewKeys, Values
from lockstep.reference.tokenizer.held_positions import HeldPositions


class GrowingCache:
    """Keys after rope and raw values of each layer, (B, G, S, D), and the position of each key.

    One cache serves one batch. `positions` says where each key stands.
    """

    def __init__(self, layers: int):
        self.keys: list[Keys | None] = [None] * layers
        self.values: list[Values | None] = [None] * layers
        self.positions = HeldPositions()

    def update(self, ops: Any, layer: int, keys: NewKeys, values: NewKeys) -> tuple[Keys, Values]:
        """Append one layer's new keys and values; return all that the layer holds."""
        past_keys, past_values = self.keys[layer], self.values[layer]
        if past_keys is not None:
            keys = ops.concatenate(past_keys, keys)
            values = ops.concatenate(past_values, values)
        self.keys[layer], self.values[layer] = keys, values
        return keys, values
