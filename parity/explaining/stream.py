"""Where the stream of a model begins, and what its layers hand out."""

from collections.abc import Mapping

import numpy as np

from lockstep.parity.explaining.case import Case
from lockstep.parity.faults.rewrites import NORMS
from lockstep.parity.graph import Graph, Value
from lockstep.parity.naming.grouping import LAYER

NEAR = 0.02  # of what should go into the first layer, in any dtype


def layers_of(taps: Mapping[str, int], dumped: Mapping[int, np.ndarray]) -> dict[str, int]:
    """Return the dumped values that a whole layer hands out, in order, by their taps."""
    found = {tap: one for tap, one in taps.items() if LAYER.fullmatch(tap) and one in dumped}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def stream_start(graph: Graph) -> int:
    """Return the value that goes into the first layer."""
    norm = next(call for call in graph.calls if call.layer is not None and call.op in NORMS)
    start = norm.inputs[0]
    assert isinstance(start, Value)
    return start.number


def is_embedding(case: Case, value: np.ndarray) -> bool:
    """Say whether a value is nearly what should go into the first layer of the model."""
    right = case.trial.centre(None).target(stream_start(case.graph))
    near = NEAR * np.abs(right).max(initial=0)
    return value.shape == right.shape and bool(np.allclose(value, right, rtol=NEAR, atol=near))
