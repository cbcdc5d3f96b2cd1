"""In float32 a bug shows under the gate: it takes the error away, and nothing else does."""

import numpy as np
import pytest

from lockstep.parity.explaining import diagnosing
from lockstep.parity.explaining.deciding import under_the_gate
from lockstep.parity.explaining.deciding.under_the_gate import Step, left_by
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.rewrites import afterwards
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import explained, fault_of, ids, port

NAME = "models/untied_float32"


def step(before, after):
    return Step(Piece(0, ()), np.square(np.array(before, float)), np.square(np.array(after, float)))


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([step([1.0] * 8, [0.5] * 8)], 0.25),
        ([step([1.0] * 4, [0.5] * 4), step([9.0] * 4, [3.0] * 4)], (1 / 4 + 1 / 9) / 2),
        ([step([1.0] * 8, [0.7] * 8)], None),  # too much is left
        ([step([1.0] * 7, [0.5] * 7)], None),  # too few tokens
        ([step([4.0] * 5 + [1.0] * 3, [0.5] * 5 + [1.1] * 3)], None),  # most of them alone
        ([step([4.0] * 6 + [1.0] * 2, [0.5] * 6 + [1.1] * 2)], (6 / 4 + 2 * 1.21) / (6 * 16 + 2)),
    ],
)
def test_what_is_left_by_hand(steps, left):
    assert left_by(steps) == (None if left is None else pytest.approx(left))


def gains(factor):
    """Return a bug that multiplies what a norm gives by so much, in float64."""
    change = afterwards("rms_norm", lambda ops, x: (x * np.float64(factor)).astype(x.dtype))
    return fault_of(f"gains times {factor}", change)


@pytest.mark.parametrize(("level", "factor"), [("modules", 1 + 1.5e-7), ("layers", 1 + 1.9e-7)])
def test_a_bug_that_the_gate_lets_pass_is_named(monkeypatch, level, factor):
    """By law: the norms are off by little more than one rounding, all of them to one side."""
    bug, other = gains(factor), gains(2 - factor)
    taps, known = port(NAME, [bug.variants[""]], level=level), [*catalogue(), bug, other]
    assert ids(explained(NAME, taps, known)) == {bug.id}
    monkeypatch.setattr(diagnosing, "look_under_the_gate", lambda case: None)
    assert explained(NAME, taps, known).verdict == "clean"


def test_what_nothing_explains_may_be_in_quiet_pieces_too():
    """By law: one norm is off by far more than the bug makes of it, by something else."""
    bug, more = gains(1 + 1.5e-7), gains(1 + 1e-4)
    taps = port(NAME, [bug.variants[""]])
    loud = port(NAME, [more.variants[""]], where=lambda call: call.layer == 0)
    here = "model.layers.0.input_layernorm"
    found = explained(NAME, taps | {here: loud[here]}, [*catalogue(), bug])
    assert not found.faults and here in [one.tap for one in found.unexplained]


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_right_port_goes_no_bugs_way(monkeypatch, level):
    """Even if no piece is too quiet to be looked at."""
    monkeypatch.setattr(under_the_gate, "LOUD", 0.1)
    known = [*catalogue(), gains(1 + 1.5e-7), gains(1 - 1.5e-7)]
    assert explained(NAME, port(NAME, level=level), known).verdict == "clean"
