"""Adapters merged into blocks of GGUF, which are packed again. By loop."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.faults.merged_adapter import can_be_packed, packed_again
from lockstep.parity.faults.tensors import dense
from lockstep.reference import ops

RNG = np.random.default_rng(31)
PLAIN, UPDATE = RNG.standard_normal((2, 2, 64)).astype(np.float32)


def in_q8_0(block):
    """Whole steps of a 127th of the largest number, halves going up; the step is a float16."""
    step = np.float32(max(map(abs, block))) / np.float32(127)
    codes = [math.copysign(math.floor(abs(one / step) + 0.5), one) for one in block]
    return [float(np.float16(step)) * code for code in codes]


def in_q4_0(block):
    """Codes 0 to 15 around 8; the largest number, of either sign, is -8 steps."""
    step = np.float32(max(block, key=abs)) / np.float32(-8)
    codes = [min(math.floor(one / step + 8.5), 15) for one in block]
    return [float(np.float16(step)) * (code - 8) for code in codes]


@pytest.mark.parametrize(("kind", "by_hand"), [("Q8_0", in_q8_0), ("Q4_0", in_q4_0)])
def test_blocks_are_packed_again_by_loop(kind, by_hand):
    stored = SimpleNamespace(dtype=kind, mode=None)
    assert can_be_packed(stored)
    found = dense(ops, packed_again(PLAIN, UPDATE, stored), np.float64).reshape(-1, 32)
    for block, value in zip((PLAIN + UPDATE).reshape(-1, 32), found, strict=True):
        np.testing.assert_allclose(value, by_hand(block.tolist()), rtol=1e-6)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "F16"])
def test_others_are_packed_in_more_than_one_way_or_not_at_all(kind):
    assert not can_be_packed(SimpleNamespace(dtype=kind, mode=None))
