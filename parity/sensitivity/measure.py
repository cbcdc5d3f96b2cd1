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

BATCH = 1 << 22  # logits that are held at a time, of each of the two runs


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
    over the model as it is given. Raises InputError if nothing can be packed by the recipe.
    """
    checkpoint = model.checkpoint
    found = kinds(checkpoint, packable(checkpoint, recipe), by)
    batches, costs = batched(examples, model.config.vocab_size), []
    plain = [np.asarray(logits(model, batch), np.float32) for batch in batches]
    for kind, modules in found.items():
        if not only(kind):
            continue
        cost = Cost(kind, len(modules), sum(size(checkpoint, module) for module in modules))
        changed = with_packed(model, modules, recipe)
        for batch, mine in zip(batches, plain, strict=True):
            cost.add(batch, mine, logits(changed, batch))
        costs.append(cost)
        progress(kind)
    return costs


def packable(checkpoint: Any, recipe: Recipe) -> list[str]:
    """Return the modules that the recipe packs, in the order of the forward pass."""
    layers, found = checkpoint.config.num_hidden_layers, []
    for module, shape in matrices(checkpoint).items():
        packing = recipe.packing(module, layers)
        if packing is not None and shape[-1] % packing.group_size == 0:
            found.append(module)
    if not found:
        raise InputError(checkpoint.path, "no weight is packed by this recipe")
    return found


def with_packed(model: Any, modules: Sequence[str], recipe: Recipe) -> Any:
    """Return the model with these modules packed. A tied head and its table part for that."""
    other, checkpoint = copy(model), model.checkpoint
    table, replaced = tied_table(checkpoint), {}
    for module in modules:
        name = f"{table if module == HEAD and table is not None else module}.weight"
        packing = recipe.packing(module, checkpoint.config.num_hidden_layers)
        if packing is not None:
            packed = PackedModule(checkpoint, name, packing).tensor()
            replaced[f"{module}.weight"] = model.backend.weight(packed)
    if table is not None and f"{table}.weight" in replaced:
        replaced.setdefault(f"{HEAD}.weight", model.base[f"{table}.weight"])
    other.weights = model.base | replaced
    return other


def size(checkpoint: Any, module: str) -> int:
    table = tied_table(checkpoint)
    name = table if module == HEAD and table is not None else module
    return prod(checkpoint.stored(f"{name}.weight").shape)


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
