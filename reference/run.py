"""One forward pass: what the operations of a model need to hand, and who listens to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.adapters import Adapted
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.stack import Stack
from lockstep.reference.shapes import (
    Array,
    Frequencies,
    KeyPositions,
    Keys,
    Mask,
    Positions,
    Queries,
    RowIndex,
    Scores,
    Tokens,
    Values,
)
from lockstep.reference.stores.cache import Cache

Trace = Callable[[str, Array], None]


@dataclass(frozen=True)
class Run:
    """The namespace of operations, the weights, the positions, the cache and the listener.

    `ops` is any object with the functions of `reference.ops`; a recorder or a fault is one too.
    """

    ops: Any
    checkpoint: Checkpoint
    dtype: np.dtype
    cache: Cache
    positions: Positions
    key_positions: KeyPositions
    places: Positions  # what decides which keys a token sees: `positions`, or the order in the row
    key_places: KeyPositions
    wanted: Array | None  # (B,) or (B, N): tokens that get logits; None means all
    trace: Trace | None
    adapters: Mapping[str, Any]  # what is added to the matrix of a module, by its path
    replaced: Mapping[str, Any]  # weights of an adapter that take the place of the checkpoint's

    @property
    def lengths(self) -> RowIndex:
        """How far each row reaches: one past its highest position, held or new. (B,)"""
        return self.key_positions.max(axis=1, initial=-1) + 1

    def keys_of(self, kind: str) -> KeyPositions:
        """Return the places of the keys that the cache gives to layers of this kind.

        (B, S); or (B, L, S) if a query does not see all that another one sees.
        """
        return self.cache.keys_of(kind, self.places, self.key_places)

    def tap(self, name: str, value: Array) -> Array:
        """Report a named activation, and pass it on."""
        if self.trace is not None:
            self.trace(name, value)
        return value

    def weight(self, name: str) -> Any:
        """Read a tensor from the checkpoint: dense, or packed as it is stored."""
        return self.replaced[name] if name in self.replaced else self.checkpoint.tensor(name)

    def stack(self, path: str) -> Stack | Adapted:
        """Open the stack of matrices at `path`, to be read one at a time, adapted or not."""
        stack, adapter = self.checkpoint.stack(f"{path}.weight"), self.adapters.get(path)
        return stack if adapter is None else Adapted(stack, adapter)

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

    def looked_up(self, ids: Tokens, path: str) -> Array:
        """Look up a row of the table at `path` for each id, with what an adapter adds to it."""
        name, adapter = f"{path}.weight", self.adapters.get(path)
        if name in self.replaced or not ids.size:
            rows = self.ops.embedding(ids, self.weight(name), dtype=self.dtype)
        else:  # the rows that are asked for, and no others: a table may be larger than all else
            asked, places = np.unique(ids, return_inverse=True)
            table = self.checkpoint.tensor_at(name, asked.tolist())
            rows = self.ops.embedding(places.reshape(ids.shape), table, dtype=self.dtype)
        if adapter is None:
            return rows
        return self.ops.add_lora_rows(rows, ids, adapter.a, adapter.b, scale=adapter.scale)

    def unembedded(self, x: Array, tied_to: str | None) -> Array:
        """Score every token by the head's matrix, or by the table that it is tied to, and tap it.

        An adapter may hold a head of its own, which is tied to nothing.
        """
        name = "lm_head.weight"
        if name in self.replaced:
            matrix = self.replaced[name]
        else:  # not `weight`: an embedding that was replaced is not the head's
            matrix = self.checkpoint.matrix(name if tied_to is None else f"{tied_to}.weight")
        return self.tap("lm_head", self.projected(x, matrix, None, "lm_head"))

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

    def attended(
        self, queries: Queries, keys: Keys, values: Values, mask: Mask, path: str, *, scale: float
    ) -> Queries:
        """Attend, and tap the scores and the weights.

        These are computed for whoever listens alone: a listener changes no bit of what comes out.
        Operations that were replaced are called one by one: any of these may be among them.
        """
        ops, parts = self.ops, (queries, keys, mask, path, scale)
        if not isinstance(ops, ModuleType):
            return ops.attention_context(self.weighed(*parts), values, mask)
        if self.trace is not None:
            self.weighed(*parts)
        return ops.attention(queries, keys, values, mask, scale=scale, masked_row="uniform")

    def weighed(self, queries: Queries, keys: Keys, mask: Mask, path: str, scale: float) -> Scores:
        """Return how much each query weighs each key, and tap it and the scores it comes from."""
        scores = self.ops.attention_scores(queries, keys, scale=scale)
        scores = self.tap(f"{path}.scores", scores)  # (B, H, L, S)
        return self.tap(f"{path}.probs", self.ops.softmax(scores, mask, masked_row="uniform"))
