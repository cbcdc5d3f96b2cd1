"""What goes wrong with the layout of a GGUF file."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.loading import NOT_CONV1D, stored_round
from lockstep.parity.faults.tensors import dense, reweighted
from lockstep.reference.checkpoint.block_tensor import Packed


def dims_reversed(ops: Any, weight: Any) -> np.ndarray:
    """Read (rows, columns) as (columns, rows), and multiply by what that gives."""
    plain = dense(ops, weight) if isinstance(weight, Packed) else weight
    return np.ascontiguousarray(plain).reshape(weight.shape[::-1]).T


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
        },
    ),
)
