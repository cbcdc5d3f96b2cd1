"""What goes wrong in batches of unequal prompts: who sees what fills them up, and who is where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.mask import MASK
from lockstep.parity.faults.passes import numbered
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.turns import POSITIONS
from lockstep.parity.graph import Call, Graph

WPE = r"transformer\.wpe"
ALL, PROMPTS, STEPS = "all", "prompts", "steps"


def seen_by_place(rows: int, window: int | None) -> np.ndarray:
    """Let each token see those before it by their places in the batch, whatever they are."""
    query, key = np.arange(rows)[:, None], np.arange(rows)
    seen = key <= query
    return seen if window is None else seen & (query - key < window)


def masked(change: Callable[[Graph, int, int | None], Any], *, steps: bool) -> Rewrite:
    """Replace the mask of padded rows, or of their steps: `change(graph, tokens, window)`."""

    @rewrite("softmax")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        if graph.pads is None or (steps and not graph.steps):
            return None
        window = graph.source(call, MASK).options["window"]

        def other(ops: Any, scores: Any, mask: Any, *, masked_row: str) -> Any:
            rows = scores.shape[-1]
            new = np.broadcast_to(change(graph, rows, window), mask.shape)
            passes = numbered(graph, rows)
            blind = ~new.any(axis=-1, keepdims=True)  # then all keys that there are weigh alike
            new = np.where(blind, passes[:, None] >= passes, new)
            if steps:
                blind, new = blind & (passes[:, None] > 0), np.where(passes[:, None] > 0, new, mask)
            return ops.softmax(
                np.where(blind, np.zeros_like(scores), scores), new, masked_row=masked_row
            )

        return call.replaced(other)

    return rewritten


def by_place(graph: Graph, rows: int, window: int | None) -> np.ndarray:
    return seen_by_place(rows, window)


def real_by_place(graph: Graph, rows: int, window: int | None) -> np.ndarray:
    """Count what fills up as part of the window, but let nobody see it."""
    return seen_by_place(rows, window) & ~pads_of(graph, rows)


def of_first_row(graph: Graph, rows: int, window: int | None) -> np.ndarray:
    """Take the mask of the first row, also where that has no token to look from."""
    return real_by_place(graph, rows, window)[:1]


def pads_of(graph: Graph, rows: int) -> np.ndarray:
    """Return the keys that only fill up, (B, 1, 1, S)."""
    return np.asarray(graph.pads)[:, None, None, :rows]


def placed(change: Callable[[Any], Any], *places: str, op: str, of: str = ALL) -> Rewrite:
    """Give padded rows other positions, or their prompts or steps alone: `change(positions)`."""
    index = POSITIONS if op == "rope" else 0

    @rewrite(op, *places)
    def rewritten(call: Call, graph: Graph) -> Call | None:
        if graph.pads is None or (of != ALL and not graph.steps):
            return None

        def other(ops: Any, at: Any, *table: Any) -> Any:
            new = np.broadcast_to(change(at), at.shape)
            for one in table:
                new = np.clip(new, 0, one.shape[0] - 1)
            later = numbered(graph, at.shape[-1]) > 0
            return new if of == ALL else np.where(later == (of == STEPS), new, at)

        return call.with_changed(index, other, *call.inputs[1:2] if op == "embedding" else ())

    return rewritten


def counted_by_place(at: Any) -> Any:
    return np.arange(at.shape[-1])[None]


def first_row(at: Any) -> Any:
    return at[:1]


FAULTS = (
    Fault(
        id="mask-padding-attended",
        wrong="queries see the keys that only fill up their row, or another row's",
        right="queries see the keys of their own prompt, in every step",
        symptom="short prompts of a batch give other text than alone",
        where="self_attn.o_proj of padded rows",
        fix="hand the padding mask on in every call, each row its own, and let it grow with steps",
        variants={
            "": masked(by_place, steps=False),
            "in steps alone": masked(by_place, steps=True),
            "the first row's mask for all": masked(of_first_row, steps=False),
            "they count in the window, though nobody sees them": masked(real_by_place, steps=False),
        },
    ),
    Fault(
        id="learned-pos-batch-shared-offset",
        wrong="p = P[place in the padded row]",
        right="p = P[number of real tokens of the row before it]",
        symptom="short prompts of a batch give other text than alone",
        where="transformer.wpe of padded rows",
        fix="count positions from each row's first real token",
        evidence=("ml-explore/mlx-lm#529", "ndif-team/nnsight#673"),
        variants={
            "": placed(counted_by_place, WPE, op="embedding"),
            "in steps alone": placed(counted_by_place, WPE, op="embedding", of=STEPS),
            "the first row's, in steps": placed(first_row, WPE, op="embedding", of=STEPS),
        },
    ),
    Fault(
        id="kv-left-pad-merge",
        wrong="steps of all rows turn by one cursor, that of the padded length, or prompts do",
        right="prompts and steps of a row turn by its own length",
        symptom="short prompts of a batch fall apart from the second token on",
        where="self_attn.q_rope of padded rows, from step 1 on",
        fix="keep an offset for each row of a merged cache",
        variants={
            "": placed(counted_by_place, op="rope", of=STEPS),
            "prompts by their places in the batch, steps by their length": placed(
                counted_by_place, op="rope", of=PROMPTS
            ),
        },
    ),
    Fault(
        id="rope-batched-kernel",
        wrong="row b turns by the positions of row 0",
        right="row b turns by its own positions",
        symptom="the first row of a batch is right, the others are not",
        where="self_attn.q_rope of rows from 1 on",
        fix="index positions by row in the kernel",
        variants={
            "in steps": placed(first_row, op="rope", of=STEPS),
            "in the prompt": placed(first_row, op="rope", of=PROMPTS),
            "everywhere": placed(first_row, op="rope"),
        },
    ),
)
