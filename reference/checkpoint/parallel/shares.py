"""Which heads, inner numbers and words a rank has, and so which rows and columns of a weight."""

from __future__ import annotations

import re
from typing import Any

from lockstep.reference.checkpoint.adapters.homes import shape_of
from lockstep.reference.checkpoint.block_tensor import BLOCKS
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.parallel.rules import Rule, rule_of, taker
from lockstep.reference.checkpoint.spans import Span, Spans

LAYER = re.compile(r"\.([0-9]+)\.")


def share(units: int, rank: int, ranks: int) -> Span:
    """Return which of some units a rank has: one after another, as evenly as they go.

    Where there are fewer than ranks, neighbours have the same one. So it is with key/value heads:
    those of a rank are the ones that its query heads look at.
    """
    first = rank * units // ranks
    return first, max(first + 1, (rank + 1) * units // ranks)


def key_heads(config: Any, layer: int) -> int:
    """Return how many key/value heads a layer of the whole model has."""
    if hasattr(config, "heads_of"):
        return config.heads_of(layer)[0]
    return config.num_key_value_heads


def group_of(checkpoint: Any, module: str) -> int:
    """Return how many columns of a weight share a scale, so that none may be cut between them."""
    stored = checkpoint.stored(f"{module}.weight")
    return stored.group_size or BLOCKS.get(stored.dtype, (1, 0))[0]


def spans_of(checkpoint: Any, module: str, rank: int, ranks: int) -> Spans:
    """Return the rows or the columns, as its rule says, that a rank has of a module's weight."""
    rule, shape = rule_of(module), shape_of(module, checkpoint)
    assert rule is not None and shape is not None  # whoever asks has looked
    size = (shape[-2] if rule.axis == "rows" else shape[-1]) // rule.segments
    units = units_of(checkpoint, module, rule, size)
    first, stop = (end * (size // units) for end in share(units, rank, ranks))
    return tuple((part * size + first, part * size + stop) for part in range(rule.segments))


def units_of(checkpoint: Any, module: str, rule: Rule, size: int) -> int:
    """Return how many units the rows or columns of one matrix are dealt out in."""
    config = checkpoint.config
    if rule.unit == "queries":
        return config.num_attention_heads
    if rule.unit == "keys":
        found = LAYER.search(module)
        return key_heads(config, 0 if found is None else int(found[1]))
    return size if rule.unit == "words" else size // group_of(checkpoint, taker(module))


def check_ranks(checkpoint: Any, ranks: int) -> None:
    """Refuse a number of ranks among which a model cannot be dealt out.

    Raises: InputError that lists what does not divide.
    """
    config, layers = checkpoint.config, range(checkpoint.config.num_hidden_layers)
    heads, wrong = config.num_attention_heads, []
    if heads % ranks:
        wrong.append(f"num_attention_heads={heads}")
    for groups in sorted({key_heads(config, layer) for layer in layers} - {heads}):
        if groups % ranks and ranks % groups:
            wrong.append(f"num_key_value_heads={groups}")
    wrong += [] if heads % ranks else misfits(checkpoint, ranks)
    if wrong:
        what = f"cannot be cut for {ranks} ranks: {', '.join(dict.fromkeys(wrong))}"
        raise InputError(checkpoint.path, what, "--tensor-parallel")


def misfits(checkpoint: Any, ranks: int) -> list[str]:
    """Say which weights have too few groups of columns, or heads that end inside of one."""
    found = []
    for name in checkpoint.names:
        module = name.removesuffix(".weight")
        rule = rule_of(module) if module != name else None
        if rule is None or rule.unit == "keys":
            continue
        shape, last = checkpoint.stored(name).shape, module.rpartition(".")[2]
        size = shape[-1] if rule.axis == "columns" else shape[-2]
        group = group_of(checkpoint, module)
        if rule.axis == "columns" and rule.unit == "queries" and size // ranks % group:
            found.append(f"{last} has {size // ranks} columns a rank in groups of {group}")
        if rule.unit == "words" and size < ranks:
            found.append(f"{last} has {size} rows")
        if rule.axis == "columns" and rule.unit == "inner" and size // group < ranks:
            inside = f" in groups of {group}" if group > 1 else ""
            found.append(f"{last} has {size} columns{inside}")
    return found
