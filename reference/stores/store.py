"""What every store offers: one layer's keys, or its values, in whatever form."""

from collections.abc import Callable
from typing import Any, Protocol, Self

Array = Any  # of the backend: np.ndarray or mx.array
Zeros = Callable[[tuple[int, ...], Any], Array]  # makes a buffer on the backend


class Store(Protocol):
    """One layer's keys, or its values: (B, G, S, D), in whatever form."""

    def append(self, ops: Any, new: Array, start: int) -> Array:
        """Keep the first `start` tokens, put `new` behind them, and return all of them."""
        ...

    def branch(self) -> Self:
        """Return a store with the same tokens, of which each goes its own way."""
        ...

    def arrays(self) -> list[Array]:
        """Return what the store holds on to, empty room included."""
        ...

    def state(self, count: int) -> list[Array]:
        """Return what is held of the first `count` tokens, as it is held, without empty room."""
        ...

    def restore(self, ops: Any, arrays: list[Array]) -> None:
        """Take what `state` gave into an empty store."""
        ...


def check_dtype(new: Any, held: Any) -> None:
    """Refuse to write one dtype into a buffer of another, which would cast. Raises: ValueError."""
    if held is not None and new.dtype != held.dtype:
        raise ValueError(f"new.dtype={new.dtype}, but the cache holds {held.dtype}")


def check_shape(new: Any, held: Any) -> None:
    """Refuse tokens of another batch, or heads of another model. Raises: ValueError."""
    if held is None:
        return
    found, right = ((batch, groups, width) for batch, groups, _, width in (new.shape, held.shape))
    if found != right:
        raise ValueError(f"new tokens of (B, G, D) = {found}, but the cache holds {right}")


def check_start(start: int, held: int) -> None:
    """Refuse to leave a gap before new tokens. Raises: ValueError if `start` is beyond `held`."""
    if not 0 <= start <= held:
        raise ValueError(f"new tokens at {start}, but the cache holds {held}")
