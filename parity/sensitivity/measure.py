"""Run a model as it is, then with each kind of matrix packed, on the same examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from math import prod
from typing import Any

import numpy as np

from lockstep.parity.quantizing.folder import matrices
from lockstep.parity.quantizing.packed_module import PackedModule
from lockstep.parity.quantizing.recipe import Recipe
from lockstep.parity.sensitivity.cost import Cost
from lockstep.parity.sensitivity.examples import Example
from lockstep.parity.sensitivity.kinds import kinds
from lockstep.reference.checkpoint.adapters import HEAD, tied_table
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.packed import Packing

BATCH = 1 << 22  # logits of a run that are held at a time, or those of one example


def packing_costs(
    model: Any,
    examples: Sequence[Example],
    recipe: Recipe,
    *,
    by: str = "kind",
    only: Callable[[str], bool] = lambda kind: True,
    progress: Callable[[str], object] = lambda kind: None,
) -> list[Cost]:
    """Return the cost of packing each kind as `recipe` says, the others as they are.

    `model` is one of `fast.load`; a weight that is packed already is unpacked first, so the cost is
    over the model as it is given. Beside it one packed copy is in memory, and a batch's logits.
    Raises: InputError if nothing can be packed by the recipe, a rule fits nothing, or logits are
    not finite.
    """
    checkpoint = model.checkpoint
    packings = packable(checkpoint, recipe)
    found = {kind: names for kind, names in kinds([*packings], by).items() if only(kind)}
    packed = packed_weights(model, [name for names in found.values() for name in names], packings)
    costs = {
        kind: Cost(kind, len(names), sum(size(checkpoint, module) for module in names))
        for kind, names in found.items()
    }
    for batch in batched(examples, model.config.vocab_size):
        mine = logits(model, batch)
        for kind, names in found.items():
            changed = with_weights(model, {module: packed[module] for module in names})
            costs[kind].add(batch, mine, logits(changed, batch))
            check_finite(checkpoint, costs[kind])
        progress(f"{len(batch)} examples")
    return [*costs.values()]


def packable(checkpoint: Any, recipe: Recipe) -> dict[str, Packing]:
    """Return module -> packing of what the recipe packs, in the order of the forward pass.

    The table of a tied model is two modules, the embedding and the head: each can be packed while
    the other use of the table stays as it is.
    """
    shapes, table = matrices(checkpoint), tied_table(checkpoint)
    if table in shapes:
        shapes[HEAD] = shapes[table]
    recipe.check([*shapes])
    found = {}
    for module, shape in shapes.items():
        packing = recipe.packing((module,), checkpoint.config.num_hidden_layers)
        if packing is not None and shape[-1] % packing.group_size == 0:
            found[module] = packing
    if not found:
        raise InputError(checkpoint.path, "no weight is packed by this recipe")
    return found


def packed_weights(
    model: Any, modules: Sequence[str], packings: dict[str, Packing]
) -> dict[str, Any]:
    """Return modules' weights packed, as the model's backend holds them.

    A table that is embedding and head is packed once, if both are packed alike.
    """
    tables = {module: (table_of(model.checkpoint, module), packings[module]) for module in modules}
    made = {
        (table, packing): model.backend.weight(
            PackedModule(model.checkpoint, f"{table}.weight", packing).tensor()
        )
        for table, packing in dict.fromkeys(tables.values())
    }
    return {module: made[tables[module]] for module in modules}


def with_weights(model: Any, changed: dict[str, Any]) -> Any:
    """Return the model with other weights. A tied head and its table part for that."""
    other, table = copy(model), tied_table(model.checkpoint)
    replaced = {f"{module}.weight": weight for module, weight in changed.items()}
    if table in changed:
        replaced.setdefault(f"{HEAD}.weight", model.base[f"{table}.weight"])
    other.weights = model.base | replaced
    return other


def check_finite(checkpoint: Any, cost: Cost) -> None:
    if not np.isfinite(cost.divergences[-1]).all():
        what = f"logits are not finite, of the model or with {cost.kind} packed"
        raise InputError(checkpoint.path, what)


def table_of(checkpoint: Any, module: str) -> str:
    """Return the module whose matrix a module uses: a tied head uses the embedding's."""
    return tied_table(checkpoint) or module if module == HEAD else module


def size(checkpoint: Any, module: str) -> int:
    return prod(checkpoint.stored(f"{table_of(checkpoint, module)}.weight").shape)


def batched(examples: Sequence[Example], vocabulary: int) -> list[list[Example]]:
    """Put examples of like length together, as many as fit."""
    ordered = sorted(examples, key=lambda one: len(one.ids))
    batches: list[list[Example]] = []
    for one in ordered:
        rows = len(batches[-1]) + 1 if batches else 0
        if not batches or rows * len(one.ids) * vocabulary > BATCH:
            batches.append([])
        batches[-1].append(one)
    return batches


def logits(model: Any, batch: Sequence[Example]) -> np.ndarray:
    """Return the logits of a batch, right-padded, (B, L, V)."""
    lengths = [len(one.ids) for one in batch]
    tokens = np.zeros((len(batch), max(lengths)), np.int64)
    for row, one in enumerate(batch):
        tokens[row, : lengths[row]] = one.ids
    return np.asarray(model.forward(tokens, lengths=np.array(lengths)), np.float32)
