"""A store in MLX's affine format: codes, with a scale and an offset for each group."""

from copy import copy
from typing import Any, Self

from lockstep.fast.caches.growing import Growing
from lockstep.fast.shapes import Array, Keys, NewKeys
from lockstep.reference.checkpoint.quantized import QuantizedTensor

GROUPS = (64, 32)  # what MLX packs, the wider one first


class Affine:
    """Packed codes (B, G, S, D * bits / 32), scales and offsets (B, G, S, D / group).

    The group is 64 dimensions, or 32. A head that neither divides is kept as it is.
    The backend makes the codes; its operation reads them.
    """

    def __init__(self, bits: int, backend: Any) -> None:
        self.bits, self.backend = bits, backend
        self.parts = [Growing(backend.zeros) for _ in range(3)]
        self.plain = Growing(backend.zeros)

    def append(self, ops: Any, new: NewKeys, start: int) -> Keys:
        """Quantise `new`, put it behind the first `start` tokens, and return all, decoded."""
        group = next((size for size in GROUPS if new.shape[-1] % size == 0), None)
        if group is None:
            return self.plain.append(ops, new, start)
        made = self.backend.quantizing.affine(new, self.bits, group)
        parts = zip(self.parts, made, strict=True)
        packed, scales, biases = (store.append(ops, part, start) for store, part in parts)
        rows = [part.reshape(-1, part.shape[-1]) for part in (packed, scales, biases)]
        weight = QuantizedTensor(rows[0], rows[1], rows[2], self.bits, group, "affine")
        values = ops.dequantize_affine(weight, rows=slice(None), dtype=new.dtype)
        return values.reshape(*packed.shape[:-1], new.shape[-1])

    def branch(self) -> Self:
        """Return a store with the same tokens."""
        other = copy(self)
        other.parts = [store.branch() for store in self.parts]
        other.plain = self.plain.branch()
        return other

    def arrays(self) -> list[Array]:
        """Return codes, scales and offsets; or what is kept as it is."""
        return [array for store in (*self.parts, self.plain) for array in store.arrays()]
