"""A store that codes what is no longer new: the latest tokens stay as they are."""

from collections.abc import Callable
from copy import copy
from typing import Any, Self

from lockstep.reference.stores.coded import Codec, Coded, Hold
from lockstep.reference.stores.concatenating import Concatenating
from lockstep.reference.stores.store import Array, Store, check_dtype, check_start


class Cooling:
    """The first `coded` tokens as codes, and those behind them, (B, G, H, D), as they came.

    Before new tokens are put in, all but the last `recent` are coded. So a prompt that is read at
    once sees itself unquantised, and each token is coded once. `coded` counts slots; where tokens
    stand is counted elsewhere, and goes on.
    """

    def __init__(self, codec: Codec, make: Callable[[], Store], hold: Hold, recent: int) -> None:
        self.recent, self.coded = recent, 0
        self.cold, self.hot = Coded(codec, make, hold), Concatenating()

    def append(self, ops: Any, new: Array, start: int) -> Array:
        """Keep the first `start` tokens, put `new` behind them, and return all.

        Raises: ValueError for a gap or another dtype. Nothing is coded then.
        """
        check_start(start, self.length)
        check_dtype(new, self.hot.held)
        self.settle(ops, start)
        hot = self.hot.append(ops, new, start - self.coded)
        if not self.coded:
            return hot
        return self.cold.hold(self.cold.codec, ops, self.cold.state(self.coded), hot, new)

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return self.coded + (0 if self.hot.held is None else self.hot.held.shape[2])

    def cut(self, start: int) -> None:
        """Forget the tokens from `start` on, coded or not."""
        held, self.coded = self.coded, min(self.coded, start)
        if self.hot.held is not None:
            self.hot.held = self.hot.held[:, :, : max(0, start - held)]

    def cool(self, ops: Any, stop: int) -> None:
        """Code the tokens before `stop` that are not yet."""
        hot, count = self.hot.held, stop - self.coded
        if hot is None or count <= 0:
            return
        self.cold.put(ops, hot[:, :, :count], self.coded)
        self.hot.held, self.coded = hot[:, :, count:], stop

    def branch(self) -> Self:
        """Return a store with the same tokens."""
        other = copy(self)
        other.cold, other.hot = self.cold.branch(), self.hot.branch()
        return other

    def arrays(self) -> list[Array]:
        """Return the codes, and the tokens that have none."""
        return [*self.cold.arrays(), *self.hot.arrays()]

    def state(self, count: int) -> list[Array]:
        """Return the codes of the first tokens, then those of the `count` that have none."""
        hot = self.hot.held
        if hot is None:
            return []
        codes = self.cold.state(min(self.coded, count))
        if not codes:  # parts of no tokens: MLX does not turn what is empty
            codes = [one[:, :, :0] for one in self.cold.codec.encode(hot[:, :, :1])]
        return [*codes, hot[:, :, : max(0, count - self.coded)]]

    def settle(self, ops: Any, count: int) -> None:
        """Keep the first `count` tokens, and code all that are not recent: as `append` would."""
        self.cut(count)
        self.cool(ops, max(0, count - self.recent))

    def restore(self, ops: Any, arrays: list[Array]) -> None:
        """Take the tokens of another store."""
        if arrays:
            self.coded = arrays[0].shape[2]
            self.cold.restore(ops, arrays[:-1])
            self.hot.restore(ops, arrays[-1:])
