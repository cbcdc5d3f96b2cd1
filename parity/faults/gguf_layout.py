"""What goes wrong with the layout of a GGUF file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.expert_order import DOWNS
from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.loading import NOT_CONV1D, stored_round
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.tensors import MOVED, Reading, dense, read_as, reweighted
from lockstep.parity.graph import Call, Graph
from lockstep.parity.graph.call import EXPERTS
from lockstep.reference.checkpoint.adapters import Adapted
from lockstep.reference.checkpoint.block_tensor import Packed


def dims_reversed(ops: Any, weight: Any) -> Any:
    """Read (rows, columns) as (columns, rows), and multiply by what that gives."""
    if isinstance(weight, Adapted):
        return replace(weight, weight=REVERSED(ops, weight.weight))
    plain = dense(ops, weight) if isinstance(weight, Packed) else weight
    return np.ascontiguousarray(plain).reshape(weight.shape[::-1]).T


REVERSED = Reading(dims_reversed, MOVED)


@rewrite(EXPERTS)
def last_of_experts(call: Call, graph: Graph) -> Call:
    return call.with_input(DOWNS, read_as(call.inputs[DOWNS], REVERSED))


FAULTS = (
    Fault(
        id="gguf-dims-reversed",
        wrong="the sizes of a tensor taken in the order in which the header lists them",
        right="the first size that is listed is the fastest axis: rows are the second",
        symptom="garbage everywhere, with shapes that fit",
        where="the first projection",
        fix="reverse the dimensions of a GGUF header before the reshape; where a matrix is to be "
        "turned round, transpose it: a reshape does not",
        variants={
            "": reweighted(dims_reversed, lambda stored: True, NOT_CONV1D),
            "transposed, and rows filled with that": reweighted(
                stored_round, lambda stored: stored.shape[0] != stored.shape[1], NOT_CONV1D
            ),
            "the last matrices of experts alone": last_of_experts,
        },
    ),
)
