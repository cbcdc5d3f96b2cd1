"""Queries and keys whose neighbours turn together are put into halves. By hand."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.align import align
from lockstep.parity.naming.rotary_order import NEIGHBOURS, PLAN

QUERIES, VALUES = "model.layers.0.self_attn.q_proj", "step.1/model.layers.0.self_attn.v_proj"


def aligned(said: str | None, width: int = 8):
    tensors = {QUERIES: np.arange(width * 1.0)[None], VALUES: np.arange(8.0)[None]}
    about = {} if said is None else {NEIGHBOURS: said}
    shapes = {name: value.shape for name, value in tensors.items()}
    return align(Dump(Path("port"), shapes, tensors.__getitem__, about))


def test_two_heads_of_four():
    """The pairs (0, 1) and (2, 3) of a head lie beside each other; here 0 turns with 2."""
    found = aligned("4")
    np.testing.assert_array_equal(found.read(QUERIES), [[0, 2, 1, 3, 4, 6, 5, 7]])
    np.testing.assert_array_equal(found.read(VALUES), [range(8)])
    assert found.plan == [PLAN]


@pytest.mark.parametrize("said", [None, "", "0", "3", "-4", "\u00b2", "4.0", "4" * 40])
def test_what_says_no_width_changes_nothing(said):
    found = aligned(said)
    np.testing.assert_array_equal(found.read(QUERIES), [range(8)])
    assert found.plan == []


def test_a_row_that_is_no_whole_number_of_heads_stays():
    np.testing.assert_array_equal(aligned("4", width=6).read(QUERIES), [range(6)])
