"""The blocks of queries in which `fast/cpu` attends."""

from importlib import import_module

import numpy as np
import pytest

from lockstep.fast.cpu import attention, causal_mask
from tests.draws import normal
from tests.tolerances import assert_close

module = import_module("lockstep.fast.cpu.attention")


@pytest.mark.parametrize("block", [1, 2, 5])
@pytest.mark.parametrize("window", [None, 2])
def test_the_seams_of_blocks_do_not_matter(monkeypatch, block, window):
    """By law: each query attends on its own; a row that sees nothing may stand in any block."""
    queries, keys, values = (normal(i, 2, heads, 5, 4) for i, heads in enumerate((4, 2, 2)))
    places = np.tile(np.arange(5), (2, 1))
    places[1] = [3, -1, 0, 7, 2]  # out of order, and one that sees nothing
    mask = causal_mask(places, np.tile(np.arange(5), (2, 1)), window=window)
    options = {"scale": 0.5, "masked_row": "uniform"}
    whole = attention(queries, keys, values, mask, **options)
    monkeypatch.setattr(module, "BLOCK", block)
    assert_close(attention(queries, keys, values, mask, **options), whole, kind="sum")
