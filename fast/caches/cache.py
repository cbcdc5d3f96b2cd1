"""What a model remembers of earlier tokens: where they stand, and a store for each layer."""

from collections.abc import Callable
from copy import copy
from typing import Any, Protocol, Self

from lockstep.fast.caches.windowed import Windowed
from lockstep.fast.shapes import Array, Keys, NewKeys, Values
from lockstep.reference.tokenizer.held_positions import HeldPositions


class Store(Protocol):
    """One layer's keys, or its values: (B, G, S, D), in whatever form."""

    def append(self, ops: Any, new: NewKeys, start: int) -> Keys:
        """Keep the first `start` tokens, put `new` behind them, and return all of them."""
        ...

    def branch(self) -> Self:
        """Return a store with the same tokens, of which each goes its own way."""
        ...

    def arrays(self) -> list[Array]:
        """Return what the store holds on to."""
        ...


class Cache:
    """Keys after rope and raw values of each layer, and the position of each token.

    One cache serves one batch. `make(layer)` makes an empty store; one that is `Windowed` drops
    what a layer with a sliding `window` can no longer see. The place of a token is counted once for
    all layers, by `positions`, and handed to the stores: no store has a cursor of its own. There it
    is also refused, where `room` is for fewer.
    """

    def __init__(
        self,
        layers: int,
        make: Callable[[int], Store],
        window: int | None = None,
        room: int | None = None,
    ):
        self.keys = [make(layer) for layer in range(layers)]
        self.values = [make(layer) for layer in range(layers)]
        self.positions = HeldPositions(window, room)

    def update(self, ops: Any, layer: int, keys: NewKeys, values: NewKeys) -> tuple[Keys, Values]:
        """Append one layer's new keys and values; return all that the layer holds.

        `positions` has the new tokens already.
        """
        start, held = self.positions.length - keys.shape[2], []
        for store, new in ((self.keys[layer], keys), (self.values[layer], values)):
            if isinstance(store, Windowed):
                store.drop(min(self.positions.first, start), start)
            held.append(store.append(ops, new, start))
        return held[0], held[1]

    def first(self, kind: str) -> int:
        """Return the number of the first token that layers of this kind are given."""
        return self.positions.first if kind == "sliding_attention" else 0

    def trim(self, count: int) -> None:
        """Forget the last `count` tokens. Raises: ValueError if fewer are held."""
        self.positions.trim(count)

    def branch(self) -> Self:
        """Return a cache with the same tokens that goes its own way from here."""
        other = copy(self)
        other.keys = [store.branch() for store in self.keys]
        other.values = [store.branch() for store in self.values]
        other.positions = self.positions.branch()
        return other

    def arrays(self) -> list[Array]:
        """Return what all layers hold on to."""
        return [array for store in (*self.keys, *self.values) for array in store.arrays()]

    @property
    def nbytes(self) -> int:
        """How many bytes are held, room that is still empty included."""
        return sum(array.nbytes for array in self.arrays())
