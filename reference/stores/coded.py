"""A store of codes: each new token is coded once, and all are decoded for each step."""

from collections.abc import Callable
from copy import copy
from typing import Any, Protocol, Self

from lockstep.reference.stores.store import Array, Store


class Codec(Protocol):
    """How (B, G, L, D) becomes arrays of codes (B, G, L, ...) and comes back: this rounds."""

    def fits(self, width: int) -> bool:
        """Tell whether heads of this width can be coded; others are kept as they are."""
        ...

    def encode(self, new: Array) -> tuple[Array, ...]:
        """Return the codes of new tokens, and whatever reads them."""
        ...

    def decode(self, ops: Any, parts: list[Array], like: Array) -> Array:
        """Return the values of all codes, in the dtype and the width of `like`."""
        ...


class Coded:
    """Codes of all tokens, each part in a store of its own."""

    def __init__(self, codec: Codec, make: Callable[[], Store]) -> None:
        self.codec, self.make = codec, make
        self.parts: list[Store] = []

    def append(self, ops: Any, new: Array, start: int) -> Array:
        """Code `new`, put it behind the first `start` tokens, and return all, decoded."""
        held = self.put(ops, new, start)
        return self.codec.decode(ops, held, new) if self.codec.fits(new.shape[-1]) else held[0]

    def put(self, ops: Any, new: Array, start: int) -> list[Array]:
        """Code `new`, put it behind the first `start` tokens, and return all codes."""
        codes = self.codec.encode(new) if self.codec.fits(new.shape[-1]) else (new,)
        parts = self.parts or [self.make() for _ in codes]
        held = [store.append(ops, code, start) for store, code in zip(parts, codes, strict=True)]
        self.parts = parts
        return held

    def branch(self) -> Self:
        """Return a store with the same tokens."""
        other = copy(self)
        other.parts = [store.branch() for store in self.parts]
        return other

    def arrays(self) -> list[Array]:
        """Return the codes; or what is kept as it is."""
        return [array for store in self.parts for array in store.arrays()]

    def state(self, count: int) -> list[Array]:
        """Return the codes of the first `count` tokens: nothing is decoded."""
        return [array for store in self.parts for array in store.state(count)]

    def restore(self, ops: Any, arrays: list[Array]) -> None:
        """Take the codes of another store."""
        self.parts = [self.make() for _ in arrays]
        for store, array in zip(self.parts, arrays, strict=True):
            store.restore(ops, [array])
