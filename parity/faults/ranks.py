"""What a dump of one rank of several shows, if the ranks' parts were never added up."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph


def of_rank(rank: int, ranks: int) -> Rewrite:
    """Add up one rank's columns alone, of the projections whose inputs are dealt out."""

    @rewrite("linear", r".*\.(o_proj|down_proj|c_proj)")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        width = graph.input_shape(call, 0)[-1]
        heads = graph.config.num_attention_heads if call.place.endswith("o_proj") else ranks
        if width % ranks or heads % ranks:  # a head lies on one rank
            return None
        first, last = rank * width // ranks, (rank + 1) * width // ranks

        def part(ops: Any, x: Any) -> Any:
            columns = np.arange(x.shape[-1])
            return np.where((first <= columns) & (columns < last), x, x.dtype.type(0))

        return call.with_changed(0, part)

    return rewritten


FAULTS = (
    Fault(
        id="tp-one-rank-alone",
        wrong="the part of a sum that one rank's inputs make",
        right="the sum over the inputs of all ranks",
        symptom="garbage, as soon as there is more than one rank",
        where="self_attn.o_proj",
        fix="add up what the ranks have behind o_proj and down_proj: it is tp-allreduce-missing "
        "in the dumps of all ranks, with --tensor-parallel",
        variants={
            f"{name} of {ranks}": of_rank(rank, ranks)
            for ranks in (2, 4, 8)
            for rank, name in ((0, "the first"), (ranks - 1, "the last"))
        },
    ),
)
