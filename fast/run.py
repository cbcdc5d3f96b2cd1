"""One forward pass: what the operations of a model need to hand, and who listens to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.fast.joined import Serving
from lockstep.fast.shapes import Array, Frequencies, KeyPositions, Positions, RowIndex, Tokens
from lockstep.fast.streaming.experts import StreamedExperts
from lockstep.reference.checkpoint.adapters import Adapted
from lockstep.reference.stores.cache import Cache

Trace = Callable[[str, Array], None]


@dataclass(frozen=True)
class Run:
    """The namespace of operations, the weights on the device, positions, cache and listener."""

    ops: Any
    config: Any
    weights: Mapping[str, Any]
    dtype: Any
    cache: Cache
    positions: Positions
    key_positions: KeyPositions
    places: Positions  # what decides which keys a token sees: `positions`, or the order in the row
    key_places: KeyPositions
    wanted: np.ndarray | None  # (B,) or (B, N): tokens that get logits; None means all
    trace: Trace | None
    adapters: Mapping[str, Any]  # what is added to the matrix of a module, by its path
    joined: Serving  # one matrix for several modules, none of them adapted
    streamed: StreamedExperts | None  # experts that are read as they are visited
    heads_at_once: Callable[..., Any] | None  # a backend's way to norm and turn heads in one go
    layers: Any | None  # a backend's way to run layers with no Python between their kernels

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

    def stack(self, path: str) -> Any:
        """Return the stack of matrices at `path`, adapted or not."""
        stack, adapter = self.weights[f"{path}.weight"], self.adapters.get(path)
        return stack if adapter is None else Adapted(stack, adapter)

    def visit(self, path: str, routing: Array) -> None:
        """Tell whoever streams the experts at `path` which of them the next operation uses."""
        if self.streamed is not None:
            self.streamed.visit(path, np.asarray(routing != 0))

    def foresee(self, path: str, routing: Callable[["Run"], Array]) -> None:
        """Guess from what is known which experts a later layer will use, if they are streamed.

        `routing` is called with a run to which nobody listens.
        """
        if self.streamed is not None:
            guess = routing(replace(self, trace=None))
            self.streamed.foresee(path, np.asarray(guess != 0))

    def linear(self, x: Array, path: str) -> Array:
        """Apply the projection stored at `path`, with its bias where it has one, and tap it."""
        bias = self.weights.get(f"{path}.bias")
        return self.tap(path, self.projected(x, self.weights[f"{path}.weight"], bias, path))

    def linears(self, x: Array, *paths: str) -> list[Array]:
        """Apply several projections to one input, in one product if their matrices lie in one."""
        joined = self.joined.get(paths)
        if joined is None:
            return [self.linear(x, path) for path in paths]
        y = self.ops.linear(x, joined.weight, joined.bias)
        parts = [y[..., columns] for columns in joined.columns]
        if self.trace is None:
            return parts
        # Whoever keeps one of them must not keep all.
        return [self.tap(path, part.copy()) for path, part in zip(paths, parts, strict=True)]

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
        table, adapter = self.weights[f"{path}.weight"], self.adapters.get(path)
        rows = self.ops.embedding(ids, table, dtype=self.dtype)
        if adapter is None:
            return rows
        return self.ops.add_lora_rows(rows, ids, adapter.a, adapter.b, scale=adapter.scale)

    def unembedded(self, x: Array, tied_to: str | None) -> Array:
        """Score every token by the head's matrix, or by the table that it is tied to, and tap it.

        An adapter may hold a head of its own, which is tied to nothing.
        """
        own = self.weights.get("lm_head.weight")
        matrix = self.weights[f"{tied_to}.weight"] if own is None else own
        return self.tap("lm_head", self.projected(x, matrix, None, "lm_head"))

    def rms_norm(self, x: Array, path: str) -> Array:
        """Apply the norm stored at `path` and tap it."""
        gain, eps = self.weights[f"{path}.weight"], self.config.rms_norm_eps
        return self.tap(path, self.ops.rms_norm(x, gain, eps=eps))

    def turned_heads(
        self, queries: Array, keys: Array, path: str, frequencies: Frequencies
    ) -> tuple[Array, Array]:
        """Norm the heads of queries (B, L, H, D) and keys, turn them, and tap all four.

        In one operation, if the backend has one for them and nobody listens. They come back as
        (B, H, L, D).
        """
        found = None
        if self.trace is None and self.heads_at_once is not None:
            gains = [self.weights[f"{path}.{one}_norm.weight"] for one in "qk"]
            factor, eps = self.config.rope_scaling.attention_factor, self.config.rms_norm_eps
            found = self.heads_at_once(
                queries, keys, gains, self.positions, frequencies, eps=eps, factor=factor
            )
        if found is not None:
            return found
        queries = self.ops.heads_first(self.rms_norm(queries, f"{path}.q_norm"))
        keys = self.ops.heads_first(self.rms_norm(keys, f"{path}.k_norm"))
        queries = self.rope(queries, f"{path}.q_rope", frequencies)
        return queries, self.rope(keys, f"{path}.k_rope", frequencies)

    def layers_at_once(
        self, x: Array, masks: Mapping[str, Any], frequencies: Frequencies
    ) -> Sequence[Array]:
        """Return the streams behind the first layers, as many as the backend runs in one go.

        Of none if somebody listens: that is done by operations, and gives the same bits. Layers are
        Llama's, or Qwen3's where norms of heads are stored; each of their kinds has a mask.
        """
        if self.trace is not None or self.layers is None:
            return []
        return self.layers.streams(self, x, masks, frequencies)

    def layer_norm(self, x: Array, path: str) -> Array:
        """Apply the norm with a mean and a bias that is stored at `path`, and tap it."""
        gain, bias = self.weights[f"{path}.weight"], self.weights[f"{path}.bias"]
        eps = self.config.layer_norm_epsilon
        return self.tap(path, self.ops.layer_norm(x, gain, bias, eps=eps))

    def rope(self, x: Array, path: str, frequencies: Frequencies) -> Array:
        """Turn queries or keys to their positions and tap them as `path`."""
        factor = self.config.rope_scaling.attention_factor
        return self.tap(path, self.ops.rope(x, self.positions, frequencies, factor=factor))
