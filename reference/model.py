"""A model that is ready to run: what every architecture shares."""

from collections.abc import Collection, Iterator
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np

from lockstep.reference.caches.make import make_cache
from lockstep.reference.checkpoint.adapters import Adapters, open_adapter
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.precision import NAMES, dtype_named
from lockstep.reference.run import Run, Trace
from lockstep.reference.scheduling.batch import BatchRules, check_order, places_of
from lockstep.reference.shapes import Array, Positions, RowIndex
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.kinds import CacheOptions

NO_ADAPTERS = Adapters()


class Model:
    """A checkpoint, an architecture's file, and the namespace of operations that they run on."""

    runs_on = "reference"

    def __init__(
        self, checkpoint: Checkpoint, *, dtype: str, ops: Any, adapters: Adapters = NO_ADAPTERS
    ):
        if dtype not in NAMES:
            raise InputError(checkpoint.path, f"dtype={dtype}, but should be one of {NAMES}")
        self.checkpoint, self.config = checkpoint, checkpoint.config
        self.rules = BatchRules(
            checkpoint.path, checkpoint.config.vocab_size, checkpoint.position_limit
        )
        self.dtype, self.ops, self.adapters = dtype, ops, adapters
        self.architecture = import_module(f"lockstep.reference.models.{checkpoint.model}")

    def with_adapter(
        self, adapter: str | Path | None, *, ignore_config: Collection[str] = ()
    ) -> Self:
        """Return this model with another adapter, or with none. The base is the same one."""
        other = copy(self)
        other.adapters = NO_ADAPTERS
        if adapter is not None:
            other.adapters = open_adapter(adapter, self.checkpoint, ignore_config=ignore_config)
        return other

    def put(self, array: np.ndarray) -> Array:
        """Take a NumPy array to where this model computes: it is there already."""
        return array

    def make_cache(
        self,
        kind: str | None = None,
        *,
        room: int | None = None,
        size: int | None = None,
        keep: int | None = None,
        recent: int | None = None,
    ) -> Cache:
        """Return an empty key/value cache for one batch, of one of `stores.kinds.KINDS`.

        Without a `kind` it is "concatenating". `room` is how many tokens `kind="preallocated"`
        makes room for. A rotating one holds `size` tokens, of which `keep` (or 0) are the first.
        A turbo one leaves the newest `recent` (or 128) as they are.
        Raises: InputError if there is no such kind, or an option is missing or not for it.
        """
        options = CacheOptions(room, size, keep, recent)
        return make_cache(kind or "concatenating", self.config, options=options)

    def forward(
        self,
        tokens: Any,
        *,
        cache: Cache | None = None,
        positions: Positions | None = None,
        lengths: RowIndex | None = None,
        trace: Trace | None = None,
        last_only: bool = False,
        reordered: bool = False,
    ) -> Array:
        """Return the logits of every token, (B, L) -> (B, L, V); of the last alone, (B, 1, V).

        `cache` holds earlier tokens and receives these. `positions` (B, L) default to going on
        from the cache. `lengths` (B,) says how many tokens of each right-padded row are real.
        `trace` is called with the name and value of every tap. `reordered` tokens see those before
        them in their row, whatever their positions; else positions decide. So does a window count.
        Raises: InputError if a token id, a shape or a length is out of range.
        """
        for _, value in self.stages(
            tokens, cache=cache, positions=positions, lengths=lengths, trace=trace,
            last_only=last_only, reordered=reordered,
        ):  # fmt: skip
            logits = value
        return logits

    def stages(
        self,
        tokens: Any,
        *,
        cache: Cache | None = None,
        positions: Positions | None = None,
        lengths: RowIndex | None = None,
        trace: Trace | None = None,
        last_only: bool = False,
        reordered: bool = False,
        only: RowIndex | None = None,
    ) -> Iterator[tuple[str, Array]]:
        """Run `forward` a stage at a time: yield the name and value of each stage's result.

        `only` (B, N) are the tokens of each row that get logits, (B, N, V), instead of all.
        """
        cache = self.make_cache() if cache is None else cache
        batch = self.rules.batch(
            tokens,
            lengths=lengths,
            positions=positions,
            held=cache.positions,
            last_only=last_only,
            only=only,
        )
        check_order(cache.positions, reordered=reordered)
        held = cache.positions.extend(batch.marked)
        places, key_places = places_of(batch, held, reordered=reordered)
        run = self.run(
            ops=self.ops,
            checkpoint=self.checkpoint,
            dtype=dtype_named(self.dtype),
            cache=cache,
            positions=batch.positions,
            key_positions=held,
            places=places,
            key_places=key_places,
            wanted=batch.wanted,
            trace=trace,
            adapters=self.adapters.modules,
            replaced=self.adapters.weights,
        )
        yield from self.architecture.stages(run, batch.tokens)

    def run(self, **facts: Any) -> Run:
        """Return the forward pass that a model's file is given; ranks have one of their own."""
        return Run(**facts)


def load(
    path: str | Path,
    adapter: str | Path | None = None,
    *,
    dtype: str = "float32",
    ignore_config: Collection[str] = (),
) -> Model:
    """Open a checkpoint folder and return its reference model. Weights are read as they are used.

    `dtype` is what is computed in: float64, float32, and bfloat16 or float16 emulated.
    `adapter` is a folder of mlx-lm or of PEFT, applied as the model runs.
    Raises: InputError for anything that the readers of checkpoints and adapters refuse.
    """
    from lockstep.reference import ops

    model = Model(open_checkpoint(path, ignore_config=ignore_config), dtype=dtype, ops=ops)
    if adapter is None:
        return model
    return model.with_adapter(adapter, ignore_config=ignore_config)
