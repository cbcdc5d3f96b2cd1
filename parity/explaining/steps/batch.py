"""Batches of unequal prompts: what fills them up is computed, and judged by nobody.

The rows are one run of the graph. A token's position is that of its own prompt, and keys that only
fill up are seen by nobody; so each row is what its prompt alone would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.graph import Call, Constant, Graph
from lockstep.reference.checkpoint.errors import InputError

PADDING = -1  # the position of a key that nobody sees
FEW = 1 << 16  # tokens of a batch that are never too many
UNEQUAL = "batch_decoded must have {wanted} ids for each of {rows} rows, not {found}"


def rows_of(dump: Dump, steps: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return the tokens of a batch (B, T), which only fill up (B, T), and the tokens of each pass.

    Raises: InputError if the rows were not fed as many tokens in the steps.
    """
    prompts = dump.batch or []
    longest = max(map(len, prompts))
    check_size(dump, prompts, longest)
    later = dump.rows("batch_decoded") or [[] for _ in prompts]
    lengths = (dump.step_lengths or [1] * max(map(len, later)))[:steps]
    count = sum(lengths)
    if len(lengths) < steps or len(later) != len(prompts) or any(len(x) < count for x in later):
        found = [len(one) for one in later]
        what = UNEQUAL.format(wanted=max(count, steps), rows=len(prompts), found=found)
        raise InputError(dump.path, what, "__metadata__")
    some = zip(prompts, later, strict=True)
    tokens = [filled(prompt, longest, dump.padding, 0) + more[:count] for prompt, more in some]
    pads = [filled([0] * len(prompt), longest, dump.padding, 1) + [0] * count for prompt in prompts]
    return np.array(tokens), np.array(pads, bool), [longest, *lengths]


def check_size(dump: Dump, prompts: Sequence[Sequence[int]], longest: int) -> None:
    """Raise InputError for a row of nothing, or more tokens than a tensor has numbers."""
    where = "__metadata__"
    if not all(prompts):
        raise InputError(dump.path, f"row {[*map(bool, prompts)].index(False)} of batch is empty",
                         where)  # fmt: skip
    largest = max(map(prod, dump.shapes.values()), default=0)
    if len(prompts) * longest > max(largest, FEW):
        what = f"batch has {len(prompts)} rows of up to {longest} ids, and no tensor is that large"
        raise InputError(dump.path, what, where)


def filled(ids: Sequence[int], length: int, side: str, value: int) -> list[int]:
    """Return a row of one length."""
    room = [value] * (length - len(ids))
    return [*room, *ids] if side == "left" else [*ids, *room]


def positions_of(pads: np.ndarray) -> np.ndarray:
    """Return the position of each token in its own prompt; what fills up stands at one it has."""
    return np.maximum(np.cumsum(~pads, axis=1) - 1, 0)


def padded(graph: Graph, pads: np.ndarray) -> Graph:
    """Return a graph in which nobody sees the keys that only fill up."""

    def marked(call: Call) -> Call:
        if call.op != "causal_mask" or not isinstance(call.inputs[1], Constant):
            return call
        keys = np.where(pads, PADDING, call.inputs[1].value)
        return call.with_input(1, Constant(keys, 1))

    return replace(graph, calls=tuple(map(marked, graph.calls)), pads=pads, rewritten={})
