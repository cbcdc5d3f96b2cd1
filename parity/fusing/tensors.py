"""Which tensors of a base's files an adapter changes, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from lockstep.parity.fusing.weight import changes, fused_weight
from lockstep.parity.writers.safetensors_stream import Planned
from lockstep.reference.checkpoint.adapters import HEAD, Adapter, Adapters, tied_table
from lockstep.reference.checkpoint.checkpoint import Checkpoint, StoredFormat
from lockstep.reference.checkpoint.dtypes import numpy_dtype
from lockstep.reference.checkpoint.errors import InputError, show

Plan = dict[str, Planned]
UNTIED = ("model.embed_tokens", "transformer.wte", "wte")  # tables beside which a head is lm_head


@dataclass(frozen=True)
class Change:
    """What becomes of the matrix of a module: another in its place, something added, or both."""

    adapter: Adapter | None
    weight: np.ndarray | None


@dataclass
class Fusion:
    """The tensors to write, the modules that are no longer packed, and a head that is now apart."""

    base: Checkpoint
    plan: Plan
    unpacked: list[str] = field(default_factory=list)
    untied: bool = False

    def include(self, adapters: Adapters) -> list[str]:
        """Plan all that an adapter changes, and return the modules that it changes."""
        changed = {
            name: Change(one, None) for name, one in adapters.modules.items() if changes(one)
        }
        for name, weight in adapters.weights.items():
            module = name.removesuffix(".weight")
            if self._has(module, weight):
                continue
            added = changed[module].adapter if module in changed else None
            changed[module] = Change(added, weight)
        table = tied_table(self.base)
        for module, change in self._tied(table, changed).items():
            self._change(module, change, changed)
        return list(changed)

    def _has(self, module: str, weight: np.ndarray) -> bool:
        """Tell whether the base has a weight already: PEFT saves unchanged tables along."""
        table = tied_table(self.base)
        name = f"{module if table is None or module != HEAD else table}.weight"
        held = None if self.base.stored(name).packed else self.base.tensor(name)
        return isinstance(held, np.ndarray) and np.array_equal(held, weight)

    def _tied(self, table: str | None, changed: dict[str, Change]) -> dict[str, Change]:
        """Return the changes without a tied head's: the table holds it, or a new tensor does."""
        if table is None or not {HEAD, table} & changed.keys():
            return changed
        nothing = Change(None, None)
        head, embedding = changed.get(HEAD, nothing), changed.get(table, nothing)
        same = head.adapter is embedding.adapter and np.array_equal(
            np.empty(0) if head.weight is None else head.weight,
            np.empty(0) if embedding.weight is None else embedding.weight,
        )
        if not same:
            self._untie(table, head)
        return {module: one for module, one in changed.items() if module != HEAD}

    def _untie(self, table: str, head: Change) -> None:
        """Give the head a matrix of its own: it no longer is what the embedding is."""
        name = f"{table}.weight"
        stored, module = self.base.stored(name), self.base.source(name).modules[0]
        if module not in UNTIED:
            what = f"head is tied to {show(module)}, and the adapter changes one of the two alone"
            raise InputError(self.base.path, what, "such a wrapped model cannot be fused")
        make = self._guarded(
            HEAD, partial(matrix, self.base, name, head, numpy_dtype(kept(stored)))
        )
        self.plan[f"{HEAD}.weight"] = Planned(kept(stored), stored.shape, make)
        self.untied = True
        if stored.packed:
            self.unpacked.append(HEAD)

    def _change(self, module: str, change: Change, changed: dict[str, Change]) -> None:
        name = f"{module}.weight"
        stored, source = self.base.stored(name), self.base.source(name)
        dtype, shape = numpy_dtype(kept(stored)), source.stored_shape(stored.shape)
        if stored.packed:
            self.unpacked += [one for one in source.modules if one not in self.unpacked]
        if source.stacked:  # a tensor for each expert
            for expert, one in enumerate(source.names):
                self._put(one, stored, shape, module, partial(
                    expert_of, self.base, name, change, expert, dtype))  # fmt: skip
            return
        file = source.names[0]
        if source.half is None:
            make = partial(matrix, self.base, name, change, dtype)
            turned = partial(_turned, make) if source.transposed else make
            self._put(file, stored, shape, module, turned)
            return
        both = [one for one in self.base.names if self.base.source(one).names[0] == file]
        both.sort(key=lambda one: self.base.source(one).half or 0)
        nothing = Change(None, None)
        halves = [
            partial(
                matrix, self.base, one, changed.get(one.removesuffix(".weight"), nothing), dtype
            )
            for one in both
        ]
        self._put(file, stored, shape, module, partial(_joined, halves))

    def _put(
        self, file: str, stored: StoredFormat, shape: tuple[int, ...], module: str,
        make: Callable[[], np.ndarray],
    ) -> None:  # fmt: skip
        self.plan[file] = Planned(kept(stored), shape, self._guarded(module, make))
        if stored.packed:
            for kind in ("scales", "biases"):
                self.plan.pop(f"{file.removesuffix('.weight')}.{kind}", None)

    def _guarded(self, module: str, make: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
        def made() -> np.ndarray:
            try:
                return make()
            except FloatingPointError as error:
                what = f"weight {show(f'{module}.weight')} cannot be fused: {error}"
                raise InputError(self.base.path, what) from None

        return made


def kept(stored: StoredFormat) -> str:
    """Return the dtype that a fused weight has: that of the weight, or of its scales."""
    return "BF16" if stored.scale_dtype == "U8" else stored.scale_dtype or stored.dtype


def matrix(base: Checkpoint, name: str, change: Change, dtype: np.dtype) -> np.ndarray:
    """Make one tensor as it will be: a vector, a matrix, or a stack of them."""
    if len(base.stored(name).shape) == 3:
        count = base.stored(name).shape[0]
        return np.stack([expert_of(base, name, change, one, dtype) for one in range(count)])
    weight = base.tensor(name) if change.weight is None else change.weight
    return fused_weight(weight, change.adapter, dtype)


def expert_of(
    base: Checkpoint, name: str, change: Change, expert: int, dtype: np.dtype
) -> np.ndarray:
    """Make the matrix of one expert."""
    added = None if change.adapter is None else change.adapter[expert]
    return fused_weight(base.stack(name)[expert], added, dtype)


def _turned(make: Callable[[], np.ndarray]) -> np.ndarray:
    return make().T


def _joined(halves: list[Callable[[], np.ndarray]]) -> np.ndarray:
    return np.concatenate([half() for half in halves], axis=-2)
