"""One forward pass: what the operations of a model need to hand, and who listens to them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.reference.caches.growing import GrowingCache
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.shapes import Array, KeyPositions, Positions

Trace = Callable[[str, Array], None]


@dataclass(frozen=True)
class Run:
    """The namespace of operations, the weights, the positions, the cache and the listener.

    `ops` is any object with the functions of `reference.ops`; a recorder or a fault is one too.
    """

    ops: Any
    checkpoint: Checkpoint
    dtype: np.dtype
    cache: GrowingCache
    positions: Positions
    key_positions: KeyPositions
    last: Array | None  # (B,) which token of each row gets logits; None means all
    trace: Trace | None

    def tap(self, name: str, value: Array) -> Array:
        """Report a named activation, and pass it on."""
        if self.trace is not None:
            self.trace(name, value)
        return value

    def weight(self, name: str) -> Any:
        """Read a tensor from the checkpoint: dense, or packed as it is stored."""
        return self.checkpoint.tensor(name)

    def linear(self, x: Array, path: str) -> Array:
        """Apply the projection stored at `path`, with its bias where it has one, and tap it."""
        name = f"{path}.bias"
        bias = self.weight(name) if self.checkpoint.has(name) else None
        return self.tap(path, self.ops.linear(x, self.weight(f"{path}.weight"), bias))

    def rms_norm(self, x: Array, path: str) -> Array:
        """Apply the norm stored at `path` and tap it."""
        eps = self.checkpoint.config.rms_norm_eps
        return self.tap(path, self.ops.rms_norm(x, self.weight(f"{path}.weight"), eps=eps))
