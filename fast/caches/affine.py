"""Keys and values in MLX's affine format: codes, with a scale and an offset for each group."""

from typing import Any

from lockstep.fast.shapes import Array, Keys, NewKeys
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.stores.kinds import AFFINE_GROUP

GROUPS = (64, AFFINE_GROUP)  # what MLX packs, the wider one first


class Affine:
    """Packed codes (B, G, S, D * bits / 32), scales and offsets (B, G, S, D / group).

    The group is 64 dimensions, or 32. A head that neither divides is kept as it is.
    The backend makes the codes; its operation reads them.
    """

    def __init__(self, bits: int, quantizing: Any) -> None:
        self.bits, self.quantizing = bits, quantizing

    def fits(self, width: int) -> bool:
        """Tell whether MLX packs heads of this width."""
        return width % AFFINE_GROUP == 0

    def encode(self, new: NewKeys) -> tuple[Array, Array, Array]:
        """Return packed codes, scales and offsets of new tokens."""
        return self.quantizing.affine(new, self.bits, group_of(new.shape[-1]))

    def decode(self, ops: Any, parts: list[Array], like: Array) -> Keys:
        """Return the values of all codes."""
        width = like.shape[-1]
        rows = [part.reshape(-1, part.shape[-1]) for part in parts]
        group = group_of(width)
        weight = QuantizedTensor(rows[0], rows[1], rows[2], self.bits, group, "affine")
        values = ops.dequantize_affine(weight, rows=slice(None), dtype=like.dtype)
        return values.reshape(*parts[0].shape[:-1], width)


def group_of(width: int) -> int:
    """Return how many dimensions share a scale."""
    return next(size for size in GROUPS if width % size == 0)
