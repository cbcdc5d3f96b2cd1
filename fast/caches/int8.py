"""Keys and values as 8-bit whole numbers, with a scale for each group of a head's dimensions."""

from typing import Any

from lockstep.fast.shapes import Array, Keys, NewKeys

GROUP = 64


class Int8:
    """Codes (B, G, S, D) from -127 to 127, and scales (B, G, S, D / group) in the model's dtype.

    The group is 64 dimensions, or the whole head where 64 does not divide it.
    The backend makes and reads the codes.
    """

    def __init__(self, quantizing: Any) -> None:
        self.quantizing = quantizing

    def fits(self, width: int) -> bool:
        """Say yes: a head of any width is coded."""
        return True

    def encode(self, new: NewKeys) -> tuple[Array, Array]:
        """Return codes and scales of new tokens."""
        width = new.shape[-1]
        return self.quantizing.absmax(new, GROUP if width % GROUP == 0 else width)

    def decode(self, ops: Any, parts: list[Array], like: Array) -> Keys:
        """Return the values of all codes."""
        return self.quantizing.from_absmax(*parts)
