"""What rounds as every right port of its dtype does is no bug of it. By law, and by hand."""

import numpy as np
import pytest

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.steps.steps import read_passes
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import dumped, model_of, port

NAME, LENGTH = "models/sliding_bfloat16", 12
SUMS, KEYS = "fp16-residual-overflow", "keys-and-values-in-half"


def candidates(dtype, change=lambda taps: taps):
    """Return the bugs that are thought of in the first layer of a port."""
    taps = change(port(NAME, dtype=dtype, level="layers", length=LENGTH))
    graph, sides = read_passes(model_of(NAME), dumped(taps, NAME, length=LENGTH), None, None)
    case = Case(model_of(NAME), graph, sides, dtype, [*catalogue()])
    piece = graph.piece(graph.taps["model.layers.0"], case.dumped)
    return {(atom.hypothesis.id, atom.hypothesis.variant) for atom in case.candidates(piece)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sums_and_caches_in_a_ports_own_dtype_are_no_bugs(dtype):
    """By law: of values in half precision those in bfloat16 are rounded to it, and so on; within
    what float16 holds its numbers are finer than those of bfloat16.
    """
    found = candidates(dtype)
    assert ((SUMS, "") in found) == (dtype == "float32")
    assert ((KEYS, "in bfloat16") in found) == (dtype != "bfloat16")
    assert ((KEYS, "in float16") in found) == (dtype == "float32")
    assert ("softmax-low-precision", "in bfloat16") in found


def test_a_sum_beyond_what_float16_holds_is_thought_of():
    """By hand: the port has an infinity."""

    def overflown(taps):
        spoilt = taps["model.layers.0"].copy()
        spoilt[0, 3, 5] = np.inf
        return taps | {"model.layers.0": spoilt}

    assert (SUMS, "") in candidates("float16", overflown)
