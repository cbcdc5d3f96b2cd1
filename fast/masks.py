"""Which keys a query may see, said as briefly as a fused kernel can use it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lockstep.fast.shapes import KeyPositions, Positions


@dataclass(frozen=True)
class Seen:
    """`kind` is "all", "causal" (the bottom-right triangle) or "some", which `mask` spells out.

    `mask` is (B, 1, L, S) on the host. `blind` says that some row of it sees no key at all.
    """

    kind: str
    mask: np.ndarray

    @cached_property
    def of_last(self) -> np.ndarray:
        """Which keys the last query of each row sees, (B, S), side by side: made once a step."""
        return np.ascontiguousarray(self.mask[:, 0, -1])

    @cached_property
    def blind(self) -> bool:
        return self.kind == "some" and not self.mask.any(axis=-1).all()


def seen_keys(query: Positions, key: KeyPositions, window: int | None) -> Seen:
    """Compare positions once, and recognise the two cases that need no mask at all."""
    if window is not None and window < 1:
        raise ValueError(f"window={window}, but should be at least 1, or None")
    queries, keys = query.shape[1], key.shape[-1]
    reach = keys if window is None else window
    alike = key.ndim == 2  # to every query; else they are (B, L, S)
    in_order = alike and keys >= queries and (key == np.arange(keys)).all()
    if in_order and reach >= keys and (query == np.arange(keys - queries, keys)).all():
        return Seen("all" if queries == 1 else "causal", triangle(len(query), queries, keys))
    key = key[:, None, None] if alike else key[:, None]
    query = query[:, None, :, None]
    mask = key >= 0  # compared, not subtracted: a matrix of whole numbers has eight times the bytes
    mask = mask & (key <= query)
    if window is not None:
        reach = min(window, int(query.max(initial=0)) + 1)  # farther lies no key, nor an int64
        mask &= key > query - reach
    return Seen("all" if queries == 1 and keys and mask.all() else "some", mask)


def triangle(batch: int, queries: int, keys: int) -> np.ndarray:
    """The causal mask as a view that takes no memory for the batch."""
    square = np.tri(queries, keys, keys - queries, dtype=bool)
    return np.broadcast_to(square, (batch, 1, queries, keys))
