"""What a model remembers of earlier tokens: where they stand, and a store for each layer."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self, cast

import numpy as np

from lockstep.reference.stores.buffered import Buffered
from lockstep.reference.stores.cooling import Cooling
from lockstep.reference.stores.held_positions import HeldPositions
from lockstep.reference.stores.kinds import CacheOptions
from lockstep.reference.stores.ring import Ring
from lockstep.reference.stores.rotating import Rotating
from lockstep.reference.stores.store import Array, Store

Pair = tuple[Store | Rotating, Store | Rotating]


class Cache:
    """Keys after rope and raw values of each layer, and the position of each token.

    One cache serves one batch. `stores` has the store of the keys and that of the values of every
    layer, `kinds` of which kind each layer is, and `rings` which tokens the layers of a kind hold,
    if not all. The place of a token is counted once for all layers, by `positions`, and handed to
    the stores: no store has a cursor of its own. There it is also refused, where there is room for
    fewer.
    """

    def __init__(
        self,
        stores: Sequence[Pair],
        *,
        name: str,
        kinds: Sequence[str] = (),
        rings: Mapping[str, Ring] | None = None,
        options: CacheOptions | None = None,
        warnings: Sequence[str] = (),
    ):
        self.warnings = warnings  # of layers that the kind cannot serve
        self.name, self.options = name, options or CacheOptions()  # what `make_cache` was told
        self.keys, self.values = [one for one, _ in stores], [one for _, one in stores]
        self.kinds = kinds or ["full_attention"] * len(stores)
        forgets = {*self.kinds} <= {*(rings or {})}
        self.positions = HeldPositions(rings, self.options.room, forgets=forgets)

    def update(self, ops: Any, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Append one layer's new keys and values; return all that the layer holds.

        `positions` has the new tokens already. What is returned is good until the next step.
        """
        start, held = self.positions.length - keys.shape[2], []
        ring = self.positions.rings.get(self.kinds[layer])
        for store, new in ((self.keys[layer], keys), (self.values[layer], values)):
            if isinstance(store, Rotating):
                assert ring is not None  # whoever makes the one makes the other
                held.append(store.place(ops, new, ring.move))
            else:
                held.append(store.append(ops, new, start))
        return held[0], held[1]

    def reserve(
        self, ops: Any, layer: int, keys: Array, values: Array
    ) -> tuple[Array, Array] | None:
        """Make room for what `update` would append; return buffers (B, G, room, D) that have it.

        Whoever asks writes the tokens there, and then says so by `reach`, or else lets `update`
        append them. None where a layer holds no such buffers. Raises: as `update` does.
        """
        store, other = self.keys[layer], self.values[layer]
        if not (isinstance(store, Buffered) and isinstance(other, Buffered)):
            return None
        if self.positions.rings:
            return None
        start = self.positions.length - keys.shape[2]
        return store.reserve(ops, keys, start), other.reserve(ops, values, start)

    def reserve_again(self, buffers: Sequence[tuple[Array, Array]]) -> bool:
        """Do what `reserve` would for a token alone, if it would return these of the first layers.

        They are what it returned before for tokens like this one. False where it would not.
        """
        start = self.positions.length - 1
        keys, values = cast("list[Buffered]", self.keys), cast("list[Buffered]", self.values)
        return all(
            one.reserve_again(both[0], start) and other.reserve_again(both[1], start)
            for one, other, both in zip(keys, values, buffers, strict=False)
        )

    def reach(self, layers: int) -> None:
        """Hold what was written of the first layers to the room that `reserve` made."""
        for stores in (self.keys, self.values):
            for store in cast("list[Buffered]", stores[:layers]):
                store.reach(self.positions.length)

    def keys_of(self, kind: str, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return where the keys stand that layers of this kind are given, (B, S) or (B, L, S).

        `queries` (B, L) and `keys`, of all tokens that `positions` has, are places; what is hidden
        stands at -1.
        """
        ring = self.positions.rings.get(kind)
        return keys if ring is None else ring.given(queries, keys[:, self.positions.at(ring.slots)])

    def trim(self, count: int) -> None:
        """Forget the last `count` tokens.

        Raises: ValueError if fewer are held, InputError if what the next token would see has been
        dropped.
        """
        self.positions.trim(count)

    def branch(self) -> Self:
        """Return a cache with the same tokens that goes its own way from here."""
        other = copy(self)
        other.keys = [store.branch() for store in self.keys]
        other.values = [store.branch() for store in self.values]
        other.positions = self.positions.branch()
        return other

    @property
    def steps_back(self) -> bool:
        """Whether nothing is left of a trimmed token: it made no other go, nor be coded."""
        stores = (*self.keys, *self.values)
        return not self.positions.rings and not any(isinstance(one, Cooling) for one in stores)

    def arrays(self) -> list[Array]:
        """Return what all layers hold on to."""
        return [array for store in (*self.keys, *self.values) for array in store.arrays()]

    def settle(self, ops: Any) -> None:
        """Quantise at once what the next step would: for a file."""
        for store in (*self.keys, *self.values):
            if isinstance(store, Cooling):
                store.settle(ops, self.positions.length)

    def state(self) -> list[tuple[list[Array], list[Array]]]:
        """Return what each layer holds of its keys and its values, as it is held: for a file."""
        count = self.positions.length
        pairs = zip(self.keys, self.values, strict=True)
        return [(keys.state(count), values.state(count)) for keys, values in pairs]

    @property
    def nbytes(self) -> int:
        """How many bytes are held, room that is still empty included."""
        return sum(array.nbytes for array in self.arrays())
