"""TurboQuant: keys and values turned at random, and each coordinate rounded to a few levels."""

from typing import Any

from lockstep.fast.shapes import Array, Keys, NewKeys
from lockstep.reference.stores.turbo_tables import LEVELS, SEED, tables


class Turbo:
    """Codes of `bits` bits a coordinate, (B, G, S, bits * D / 32) words, and lengths (B, G, S, 1).

    The backend makes and reads them.
    """

    def __init__(self, bits: int, turbo: Any, *, unbiased: bool, seed: int = SEED) -> None:
        self.bits, self.turbo, self.unbiased, self.seed = bits, turbo, unbiased, seed

    def fits(self, width: int) -> bool:
        """Tell whether there are levels for heads of this width."""
        return width in LEVELS

    def encode(self, new: NewKeys) -> tuple[Array, ...]:
        """Return words and lengths of new tokens."""
        table = tables(new.shape[-1], self.seed)
        make = self.turbo.coded_keys if self.unbiased else self.turbo.coded
        return make(new, self.bits, table)

    def decode(self, ops: Any, parts: list[Array], like: Array) -> Keys:
        """Return the values of all codes."""
        table, dtype = tables(like.shape[-1], self.seed), like.dtype
        read = self.turbo.decoded_keys if self.unbiased else self.turbo.decoded
        return read(*parts, self.bits, table, dtype)
