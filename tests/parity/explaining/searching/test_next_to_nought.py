"""Numbers that a port's dtype does not hold with all their bits, to the quick measure. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Value
from lockstep.reference import ops
from tests.parity.faults.hand_made import call, graph_of

RNG = np.random.default_rng(3)
FLOAT32 = np.dtype(np.float32)
X = RNG.standard_normal((1, 6, 96)).astype(FLOAT32)
ROWS = RNG.standard_normal((32, 96)).astype(FLOAT32)


def left_of(size: float, off: float = 1.0) -> float:
    """Return how many noises a port is off the bug that it has: rows that are smaller by a size."""
    x, less = X * FLOAT32.type(1e-20), FLOAT32.type(size)
    graph = graph_of(call(0, "scale", x, by=1.0), call(1, "linear", Value(0), ROWS, None))
    port = ops.linear(x, ROWS * less, None) * FLOAT32.type(off)
    trial = Trial(graph, ops, FLOAT32, {0: x, 1: port}, lambda tensor: tensor)
    bug = graph.calls[1].with_changed(1, lambda ops, rows: rows * less)
    return trial.look(graph.piece(1, {0, 1}), {1: bug}).raw(0, None)


@pytest.mark.parametrize("size", [1.0, 1e-10, 1e-20, 1e-22, 1e-24, 1e-26, 1e-35])
def test_a_port_is_near_its_bug_however_small_its_numbers_are(size):
    assert left_of(size) < 4


@pytest.mark.parametrize("size", [1.0, 1e-10, 1e-18, 1e-22])
def test_it_is_far_from_another(size):
    assert left_of(size, 2.0) > 1000
