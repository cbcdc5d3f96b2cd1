"""A model that is ready to run fast: the interface of `reference.model`, weights on the device."""

from collections.abc import Callable, Collection, Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np

from lockstep.fast.backends import backend_named
from lockstep.fast.caches.make import make_cache
from lockstep.fast.chosen import Chosen
from lockstep.fast.joined import Serving
from lockstep.fast.run import Run, Trace
from lockstep.fast.shapes import Array, Positions, RowIndex
from lockstep.fast.streaming.experts import StreamedExperts
from lockstep.reference.checkpoint.adapters import HEAD, Adapters, open_adapter, tied_table
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.scheduling.batch import BatchRules, check_order, places_of
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.kinds import CacheOptions

Progress = Callable[[str], None]


class Model:
    """A checkpoint's weights on a backend, and the architecture's file that runs them."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: str,
        backend: Any,
        progress: Progress | None = None,
        expert_budget: int | None = None,
    ):
        self.checkpoint, self.config = checkpoint, checkpoint.config
        self.rules = BatchRules(
            checkpoint.path, checkpoint.config.vocab_size, checkpoint.position_limit
        )
        self.dtype, self.backend, self.ops = dtype, backend, backend.ops
        self.base, self.adapters = {}, Adapters()
        self.streamed = None
        if expert_budget is not None:
            self.streamed = StreamedExperts(checkpoint, backend, expert_budget)
            self.base |= self.streamed.stacks
        read = self.reader(checkpoint)
        for name in checkpoint.names:
            if name not in self.base:
                self.base[name] = backend.weight(read(name))
            if progress is not None:
                progress(name)
        self.joined, self.layers = backend.joined(self.base), backend.layers()
        self.weights = self.base  # or, with an adapter that holds whole weights, these among them
        self.architecture = import_module(f"lockstep.fast.models.{checkpoint.model}")

    def reader(self, checkpoint: Checkpoint) -> Callable[[str], Any]:
        """Return what reads a tensor; ranks have one of their own."""
        return partial(checkpoint.tensor, rooms=self.backend.rooms(checkpoint))

    def with_adapter(
        self, adapter: str | Path | None, *, ignore_config: Collection[str] = ()
    ) -> Self:
        """Return this model with another adapter, or with none. The base's weights are shared."""
        other = copy(self)
        other.weights, other.adapters = self.base, Adapters()
        other.layers = self.backend.layers()
        if adapter is not None:
            found = self.own(open_adapter(adapter, self.checkpoint, ignore_config=ignore_config))
            held = {path: self.backend.adapter(one) for path, one in found.modules.items()}
            other.adapters = replace(found, modules=held)
            other.weights = self._with(found)
        return other

    def own(self, adapters: Adapters) -> Adapters:
        """Return what of an adapter is for the weights that are here: all of it."""
        return adapters

    def _with(self, adapters: Adapters) -> dict[str, Any]:
        """Return the base's weights with an adapter's in their place: the same ones if it has none.

        Where a tied embedding alone is replaced, the head keeps the base's table.
        """
        if not adapters.weights:
            return self.base
        held = {name: self.backend.weight(value) for name, value in adapters.weights.items()}
        table = tied_table(self.checkpoint)
        head = {} if table is None else {f"{HEAD}.weight": self.base[f"{table}.weight"]}
        return self.base | head | held

    @property
    def runs_ahead(self) -> bool:
        """Whether a step can begin before the host has the id that it reads.

        Streamed experts are read as the host learns which ones a step visits.
        """
        return self.backend.runs_ahead and self.streamed is None

    @property
    def unheard(self) -> dict[str, Any]:
        """The backend's ways where nobody listens, by their names in `Run`; None is for none.

        They are those of its own operations, and layers are run in one go without an adapter.
        """
        if self.ops is not self.backend.ops:
            return {"heads_at_once": None, "layers": None}
        layers = None if self.adapters.modules else self.layers
        return {"heads_at_once": self.backend.heads_at_once, "layers": layers}

    @property
    def has_unheard_way(self) -> bool:
        """Whether a token may go another way where nobody listens, to the same bits."""
        asked = getattr(self.architecture, "UNHEARD", ())
        return any(self.unheard[way] is not None for way in asked)

    @property
    def runs_on(self) -> str:
        """The name of the backend: "mlx" or "cpu"."""
        return self.backend.name

    def put(self, array: np.ndarray) -> Array:
        """Take a NumPy array to where this model computes, as it is."""
        return self.backend.put(array)

    def make_cache(
        self,
        kind: str | None = None,
        *,
        room: int | None = None,
        size: int | None = None,
        keep: int | None = None,
        recent: int | None = None,
    ) -> Cache:
        """Return an empty key/value cache; without a `kind` it is "growing".

        The arguments are those of `reference.model.Model.make_cache`.
        """
        options = CacheOptions(room, size, keep, recent)
        return make_cache(kind or "growing", self.config, options=options, backend=self.backend)

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

        The arguments are those of `reference.model.Model.forward`. On MLX the result is a graph;
        nothing is computed before somebody looks at it.
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

        `tokens` may be `Chosen` by the step before, on MLX.
        `only` (B, N) are the tokens of each row that get logits, (B, N, V), instead of all.
        """
        cache = self.make_cache() if cache is None else cache
        batch = self.rules.batch(
            tokens.places() if isinstance(tokens, Chosen) else tokens,
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
            config=self.config,
            weights=self.weights,
            dtype=self.backend.dtype,
            cache=cache,
            positions=batch.positions,
            key_positions=held,
            places=places,
            key_places=key_places,
            wanted=batch.wanted,
            trace=trace,
            adapters=self.adapters.modules,
            joined=Serving(self.joined, self.weights, self.adapters.modules),
            streamed=self.streamed,
            **self.unheard,
        )
        ids = tokens.ids if isinstance(tokens, Chosen) else batch.tokens
        yield from self.architecture.stages(run, ids)

    def run(self, **facts: Any) -> Run:
        """Return the forward pass that a model's file is given; ranks have one of their own."""
        return Run(**facts)


def load(
    path: str | Path,
    adapter: str | Path | None = None,
    *,
    dtype: str = "float32",
    ignore_config: Collection[str] = (),
    backend: str = "fast",
    device: str | None = None,
    activations: str = "float32",
    progress: Progress | None = None,
    expert_budget: int | None = None,
) -> Model:
    """Open a checkpoint folder and put its weights on a backend; packed weights stay packed.

    `backend` is "mlx", "cpu", or "fast" for the better one on this machine; `device` is MLX's,
    and `activations` the processor's: "int16" or "int8" is quicker with packed weights, and rounds.
    `progress` is called with the name of each tensor that was read.
    `adapter` is a folder of mlx-lm or of PEFT, applied as the model runs. With an `expert_budget`
    experts stay on the disk, and so many bytes of them in memory.
    Raises: InputError for anything that the readers of checkpoints and adapters refuse.
    """
    chosen = backend_named(backend, dtype=dtype, device=device, activations=activations)
    checkpoint = open_checkpoint(path, ignore_config=ignore_config)
    model = Model(
        checkpoint, dtype=dtype, backend=chosen, progress=progress, expert_budget=expert_budget
    )
    if adapter is None:
        return model
    return model.with_adapter(adapter, ignore_config=ignore_config)
