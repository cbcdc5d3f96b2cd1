"""Dimensions of a GGUF header taken in the wrong order: by index, and on small models."""

import numpy as np
import pytest

from lockstep.parity.faults.gguf_layout import FAULTS, dims_reversed
from lockstep.parity.faults.loading import stored_round
from lockstep.reference import ops
from tests.parity.faults.planted import check_in_every_way, check_shows, variants

NAMES = ("gguf/qwen3_mixed.gguf", "models/untied_float32")


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, {})


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def test_by_index():
    """Rows 0 1 2 | 3 4 5 read as 0 1 | 2 3 | 4 5, of which the columns are multiplied by."""
    weight = np.arange(6.0).reshape(2, 3)
    assert dims_reversed(ops, weight).tolist() == [[0, 2, 4], [1, 3, 5]]


def test_columns_in_a_row_by_index():
    """Rows 0 1 2 | 3 4 5 are 0 3 1 4 2 5 by columns, of which rows of three are made."""
    weight = np.arange(6.0).reshape(2, 3)
    assert stored_round(ops, weight).tolist() == [[0, 3, 1], [4, 2, 5]]
