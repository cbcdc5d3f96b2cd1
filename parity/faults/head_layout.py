"""What goes wrong where rows are cut into heads, and where heads become rows again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.head_rows import rows_moved
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph


def as_laid_out(ops: Any, heads: Any) -> Any:
    """Read (B, H, L, D) as if it were (B, L, H, D)."""
    batch, count, length, width = heads.shape
    return heads.reshape(batch, length, count, width).swapaxes(1, 2)


@rewrite("merge_heads")
def unmoved(call: Call, graph: Graph) -> Call | None:
    attends = graph.source(call, 0).op == "attention_context"
    return call.with_changed(0, as_laid_out) if attends else None


def heads_last(ops: Any, heads: Any) -> Any:
    """Read (B, L, H, D) as if it were (B, L, D, H)."""
    batch, length, count, width = heads.shape
    return heads.reshape(batch, length, width, count).swapaxes(2, 3)


def heads_first(ops: Any, heads: Any) -> Any:
    """Read (B, L, H, D) as if it were (B, H, L, D)."""
    batch, length, count, width = heads.shape
    return heads.reshape(batch, count, length, width).swapaxes(1, 2)


@rewrite("merge_heads")
def numbers_first(call: Call, graph: Graph) -> Call | None:
    """Lay a row out as (D, H)."""
    attends = graph.source(call, 0).op == "attention_context"
    _, heads, _, width = graph.input_shape(call, 0)

    def change(ops: Any, rows: Any) -> Any:
        return rows.reshape(*rows.shape[:-1], heads, width).swapaxes(-1, -2).reshape(rows.shape)

    return call.followed(change) if attends and heads > 1 else None


@rewrite("merge_heads")
def first_for_all(call: Call, graph: Graph) -> Call | None:
    """Hand out what the first head averaged, in the place of each."""
    attends = graph.source(call, 0).op == "attention_context"
    count = graph.input_shape(call, 0)[1]

    def change(ops: Any, heads: Any) -> Any:
        return np.repeat(heads[:, :1], count, axis=1)

    return call.with_changed(0, change) if attends and count > 1 else None


def cut_otherwise(change: Callable[[Any, Any], Any]) -> Rewrite:
    """View what is projected otherwise, if there are heads to mix."""

    @rewrite("split_heads", r"(self_)?attn\..*")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        return call.followed(change) if graph.shapes[call.number][-2] > 1 else None

    return rewritten


FAULTS = (
    Fault(
        id="head-merge-without-transpose",
        wrong="(B, H, L, D) read as (B, L, H D)",
        right="heads moved behind the tokens first, then merged",
        symptom="garbage, though a single token is exact",
        where="self_attn.o_proj",
        fix="transpose heads and tokens before the reshape",
        acausal=True,
        variants={"": unmoved},
    ),
    Fault(
        id="head-first-for-all",
        wrong="what the first head averaged, in the place of every head",
        right="what each head averaged, in its own place",
        symptom="garbage from the first token on",
        where="self_attn.o_proj",
        fix="look at the index of the head that the kernel is launched with",
        variants={"": first_for_all},
    ),
    Fault(
        id="head-merge-axes-swapped",
        wrong="a row of H D numbers laid out as (D, H)",
        right="a row of H D numbers laid out as (H, D)",
        symptom="garbage with the right shapes",
        where="self_attn.o_proj",
        fix="move heads before a head's numbers, then merge: (B, L, H, D)",
        variants={"": numbers_first},
    ),
    Fault(
        id="head-split-axes-swapped",
        wrong="a row of H D numbers read as (D, H)",
        right="a row of H D numbers read as (H, D)",
        symptom="garbage with the right shapes",
        where="self_attn.q_rope",
        fix="view what is projected as (B, L, H, D): a head's numbers lie side by side",
        variants={
            "": cut_otherwise(heads_last),
            "rows of queries and keys laid out as (D, H)": rows_moved(
                lambda rows, heads, queries: rows.reshape(heads, -1).T.reshape(-1)
            ),
        },
    ),
    Fault(
        id="head-split-without-transpose",
        wrong="(B, L, H D) read as (B, H, L, D)",
        right="(B, L, H D) read as (B, L, H, D), and heads brought before tokens",
        symptom="garbage with the right shapes, though a single token is exact",
        where="self_attn.q_rope",
        fix="view as (B, L, H, D) first, then transpose tokens and heads",
        acausal=True,
        variants={"": cut_otherwise(heads_first)},
    ),
)
