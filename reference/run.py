"""One forward pass: what the operations of a model need to hand, and who listens to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.reference.caches.growing import GrowingCache
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.stack import Stack
from lockstep.reference.shapes import Array, Frequencies, KeyPositions, Positions, RowIndex

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
    adapters: Mapping[str, Any]  # the adapter of a projection, by its path

    @property
    def lengths(self) -> RowIndex:
        """How far each row reaches: one past its highest position, held or new. (B,)"""
        return self.key_positions.max(axis=1, initial=-1) + 1

    def tap(self, name: str, value: Array) -> Array:
        """Report a named activation, and pass it on."""
        if self.trace is not None:
            self.trace(name, value)
        return value

    def weight(self, name: str) -> Any:
        """Read a tensor from the checkpoint: dense, or packed as it is stored."""
        return self.checkpoint.tensor(name)

    def stack(self, name: str) -> Stack:
        """Open a stack of matrices of the checkpoint, to be read one at a time."""
        return self.checkpoint.stack(name)

    def linear(self, x: Array, path: str) -> Array:
        """Apply the projection stored at `path`, with its bias where it has one, and tap it."""
        name = f"{path}.bias"
        bias = self.weight(name) if self.checkpoint.has(name) else None
        return self.tap(path, self.projected(x, self.weight(f"{path}.weight"), bias, path))

    def projected(self, x: Array, weight: Any, bias: Any, path: str) -> Array:
        """Multiply by a matrix and add its bias, and what an adapter makes of it."""
        adapter = self.adapters.get(path)
        if adapter is None:
            return self.ops.linear(x, weight, bias)
        dora, pair = adapter.magnitude is not None, (adapter.a, adapter.b)
        y = self.ops.linear(x, weight, None if dora else bias)
        y = self.ops.add_lora(y, x, *pair, scale=adapter.scale)
        if not dora:
            return y
        rows = (weight, bias, *pair, adapter.magnitude)
        return self.ops.dora_rescale(y, *rows, scale=adapter.scale)

    def rms_norm(self, x: Array, path: str) -> Array:
        """Apply the norm stored at `path` and tap it."""
        eps = self.checkpoint.config.rms_norm_eps
        return self.tap(path, self.ops.rms_norm(x, self.weight(f"{path}.weight"), eps=eps))

    def layer_norm(self, x: Array, path: str) -> Array:
        """Apply the norm with a mean and a bias that is stored at `path`, and tap it."""
        gain, bias = self.weight(f"{path}.weight"), self.weight(f"{path}.bias")
        eps = self.checkpoint.config.layer_norm_epsilon
        return self.tap(path, self.ops.layer_norm(x, gain, bias, eps=eps))

    def rope(self, x: Array, path: str, frequencies: Frequencies) -> Array:
        """Turn queries or keys to their positions and tap them as `path`."""
        factor = self.checkpoint.config.rope_scaling.attention_factor
        return self.tap(path, self.ops.rope(x, self.positions, frequencies, factor=factor))
