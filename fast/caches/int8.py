"""A store of 8-bit whole numbers, with a scale for each group of a head's dimensions."""

from copy import copy
from typing import Any, Self

from lockstep.fast.caches.growing import Growing
from lockstep.fast.shapes import Array, Keys, NewKeys

GROUP = 64


class Int8:
    """Codes (B, G, S, D) from -127 to 127, and scales (B, G, S, D / group) in the model's dtype.

    The backend makes and reads the codes; they are held in buffers that grow in steps.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.codes, self.scales = Growing(backend.zeros), Growing(backend.zeros)

    def append(self, ops: Any, new: NewKeys, start: int) -> Keys:
        """Quantise `new`, put it behind the first `start` tokens, and return all, decoded."""
        group = GROUP if new.shape[-1] % GROUP == 0 else new.shape[-1]
        codes, scales = self.backend.quantizing.absmax(new, group)
        codes = self.codes.append(ops, codes, start)
        return self.backend.quantizing.from_absmax(codes, self.scales.append(ops, scales, start))

    def branch(self) -> Self:
        """Return a store with the same tokens."""
        other = copy(self)
        other.codes, other.scales = self.codes.branch(), self.scales.branch()
        return other

    def arrays(self) -> list[Array]:
        """Return codes and scales, empty room included."""
        return [*self.codes.arrays(), *self.scales.arrays()]
