"""What the codecs of caches have in common on both sides: which part is which, and its shape.

What rounds is handed in: modules of `reference/caches`, or of `fast/caches` for a backend.
"""

from typing import Any

from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.stores.coded import Codec
from lockstep.reference.stores.kinds import AFFINE_BITS, AFFINE_GROUP, TURBO_BITS, UNBIASED
from lockstep.reference.stores.store import Array
from lockstep.reference.stores.turbo_tables import SEED, Tables, tables

GROUP = 64  # dimensions that share a scale, where it divides a head


def whole_group(width: int) -> int:
    """Return how many dimensions of a head share a scale in 8 bits: 64, or all."""
    return GROUP if width % GROUP == 0 else width


def affine_group(width: int) -> int:
    """Return how many dimensions of a head share a scale in MLX's format: 64, or 32."""
    return GROUP if width % GROUP == 0 else AFFINE_GROUP


class Int8Codes:
    """Codes (B, G, S, D) from -127 to 127, and scales (B, G, S, D / group) in the model's dtype.

    The group is 64 dimensions, or the whole head where 64 does not divide it. `int8` makes and
    reads them.
    """

    def __init__(self, int8: Any) -> None:
        self.int8 = int8

    def encode(self, new: Array) -> tuple[Array, ...]:
        """Return codes and scales of new tokens."""
        return self.int8.absmax(new, whole_group(new.shape[-1]))

    def decode(self, ops: Any, parts: list[Array], like: Array) -> Array:
        """Return the values of all codes, in the dtype of the scales."""
        return self.int8.from_absmax(*parts)


class AffineCodes:
    """Packed codes (B, G, S, D * bits / 32), scales and offsets (B, G, S, D / group).

    The group is 64 dimensions, or 32. `affine` makes them, and an operation reads them.
    """

    def __init__(self, bits: int, affine: Any) -> None:
        self.bits, self.affine = bits, affine

    def encode(self, new: Array) -> tuple[Array, ...]:
        """Return packed codes, scales and offsets of new tokens."""
        return self.affine.affine(new, self.bits, affine_group(new.shape[-1]))

    def decode(self, ops: Any, parts: list[Array], like: Array) -> Array:
        """Return the values of all codes, in the dtype and the width of `like`."""
        width = like.shape[-1]
        rows = [part.reshape(-1, part.shape[-1]) for part in parts]
        weight = QuantizedTensor(
            rows[0], rows[1], rows[2], self.bits, affine_group(width), "affine"
        )
        values = ops.dequantize_affine(weight, rows=slice(None), dtype=like.dtype)
        return values.reshape(*parts[0].shape[:-1], width)


class TurboCodes:
    """Codes of `bits` bits a coordinate, (B, G, S, bits * D / 32) words, and lengths (B, G, S, 1).

    They are coded for the least squared error. An `unbiased` one has one bit less for that, and one
    for the sign of a random projection of what is left, so that its product with any query is right
    on average; the length of what is left is kept too. `turbo` makes and reads them.
    """

    def __init__(self, bits: int, turbo: Any, *, unbiased: bool, seed: int = SEED) -> None:
        self.bits, self.turbo, self.unbiased, self.seed = bits, turbo, unbiased, seed

    def tables(self, width: int) -> Tables:
        return tables(width, self.seed)

    def encode(self, new: Array) -> tuple[Array, ...]:
        """Return words and lengths of new tokens."""
        make = self.turbo.coded_keys if self.unbiased else self.turbo.coded
        return make(new, self.bits, self.tables(new.shape[-1]))

    def decode(self, ops: Any, parts: list[Array], like: Array) -> Array:
        """Return the values of all codes, in the dtype and the width of `like`."""
        read = self.turbo.decoded_keys if self.unbiased else self.turbo.decoded
        return read(*parts, self.bits, self.tables(like.shape[-1]), like.dtype)


def codec_named(kind: str, int8: Any, affine: Any, turbo: Any, *, keys: bool) -> Codec:
    """Return what makes codes of the keys or the values in a cache of this kind."""
    if kind in TURBO_BITS:
        return TurboCodes(TURBO_BITS[kind], turbo, unbiased=keys and kind in UNBIASED)
    return Int8Codes(int8) if kind == "int8" else AffineCodes(AFFINE_BITS[kind], affine)
