"""What goes wrong inside of attention."""

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.rewrites import option, rewrite
from lockstep.parity.graph import Call, Graph


def tiled(ops, heads, queries):
    """Order key heads so that query head h finds head h % G where it looks for h // (H / G)."""
    groups, copies = heads.shape[1], queries.shape[1] // heads.shape[1]
    return np.tile(heads, (1, copies, 1, 1)) if groups > 1 and copies > 1 else heads


def gqa_tiled() -> Rewrite:
    @rewrite(("attention_scores", "attention_context"))
    def change(call: Call, graph: Graph) -> Call | None:
        queries, groups = (graph.input_shape(call, index)[1] for index in (0, 1))
        if groups in (1, queries):
            return None
        return call.with_changed(1, tiled, call.inputs[0])

    return change


FAULTS = (
    Fault(
        id="attn-scale-should-be-one",
        wrong="scores = q k^T / sqrt(head_dim)",
        right="scores = q k^T",
        symptom="attention too flat",
        where="self_attn.o_proj",
        fix="do not scale the scores: queries and keys are normalised",
        variants={
            "1/sqrt(head_dim)": rewrite("attention_scores")(
                lambda call, graph: call.with_options(
                    scale=graph.input_shape(call, 0)[-1] ** -0.5
                ) if call.options["scale"] == 1.0 else None
            ),
        },
    ),
    Fault(
        id="attn-scale-missing",
        wrong="scores = q k^T",
        right="scores = q k^T / sqrt(head_dim)",
        symptom="attention far too sharp",
        where="self_attn.o_proj",
        fix="divide the scores by the root of head_dim",
        variants={"": option("attention_scores", "scale", lambda scale: 1.0)},
    ),
    Fault(
        id="gqa-tile-vs-repeat",
        wrong="query head h looks at key head h mod G",
        right="query head h looks at key head h // (H / G)",
        symptom="garbage from the first token on",
        where="self_attn.o_proj",
        fix="repeat each key and value head H / G times in place (repeat_interleave, not tile)",
        variants={"": gqa_tiled()},
    ),
)
