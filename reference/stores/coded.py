"""A store of codes: each new token is coded once."""

from collections.abc import Callable
from copy import copy
from typing import Any, Protocol, Self

from lockstep.reference.stores.store import Array, Store


class Codec(Protocol):
    """How (B, G, L, D) becomes arrays of codes (B, G, L, ...) and comes back: this rounds.

    Heads are of a width that it has codes for: `stores.kinds.kept_whole` names the other layers.
    """

    def encode(self, new: Array) -> tuple[Array, ...]:
        """Return the codes of new tokens, and whatever reads them."""
        ...

    def decode(self, ops: Any, parts: list[Array], like: Array) -> Array:
        """Return the values of all codes, in the dtype and the width of `like`."""
        ...


# Makes of codes, and of tokens behind them that are none, what attention takes: `held` is told the
# codec, the operations, the codes, those tokens or None, and an array of the same dtype and width.
Hold = Callable[[Codec, Any, list[Array], Array | None, Array], Any]


def decoded(codec: Codec, ops: Any, codes: list[Array], recent: Array | None, like: Array) -> Array:
    """Decode everything, and put behind it what is no code: (B, G, S, D)."""
    held = codec.decode(ops, codes, like)
    return held if recent is None else ops.concatenate(held, recent)


class Coded:
    """Codes of all tokens, each part in a store of its own."""

    def __init__(self, codec: Codec, make: Callable[[], Store], hold: Hold) -> None:
        self.codec, self.make, self.hold = codec, make, hold
        self.parts: list[Store] = []

    def append(self, ops: Any, new: Array, start: int) -> Array:
        """Code `new`, put it behind the first `start` tokens, and return all."""
        return self.hold(self.codec, ops, self.put(ops, new, start), None, new)

    def put(self, ops: Any, new: Array, start: int) -> list[Array]:
        """Code `new`, put it behind the first `start` tokens, and return all codes."""
        codes = self.codec.encode(new)
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
        """Return the codes, room behind them included."""
        return [array for store in self.parts for array in store.arrays()]

    def state(self, count: int) -> list[Array]:
        """Return the codes of the first `count` tokens: nothing is decoded."""
        return [array for store in self.parts for array in store.state(count)]

    def restore(self, ops: Any, arrays: list[Array]) -> None:
        """Take the codes of another store."""
        self.parts = [self.make() for _ in arrays]
        for store, array in zip(self.parts, arrays, strict=True):
            store.restore(ops, [array])
