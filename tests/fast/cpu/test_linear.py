"""The blocks in which `fast/cpu` unpacks a weight."""

from importlib import import_module

import pytest

from lockstep.fast.cpu import linear
from tests.draws import normal, packed_matrix
from tests.ops_backends import DTYPES
from tests.sampled import sampled
from tests.tolerances import assert_close

module = import_module("lockstep.fast.cpu.linear")


@sampled(1, "bfloat16-96")
@pytest.mark.parametrize("block", [1, 32, 96, 10**6])
@pytest.mark.parametrize("kind", ["packed", "bfloat16"])
def test_the_seams_of_blocks_do_not_matter(monkeypatch, block, kind):
    """By law: however many rows are unpacked at a time, and one at least, each is its own sum."""
    monkeypatch.setattr(module, "BLOCK", block)
    weight, exact = packed_matrix(0, 7, 32, bits=3, group=32, dtype=DTYPES["bfloat16"])
    if kind == "bfloat16":
        weight = exact = normal(0, 7, 32, dtype=DTYPES[kind])
    x = normal(1, 2, 3, 32)
    assert_close(linear(x, weight, None), x.astype(float) @ exact.astype(float).T, kind="sum")


def test_a_float32_weight_is_one_block():
    """By hand: nothing is copied that is usable as it is."""
    weight = normal(0, 5, 4)
    [(part, block)] = module.blocks(weight)
    assert part == slice(0, 5)
    assert block is weight
