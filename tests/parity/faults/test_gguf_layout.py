"""Dimensions of a GGUF header taken in the wrong order: by index, and on small models."""

import numpy as np
import pytest

from lockstep.parity.faults.gguf_layout import FAULTS, dims_reversed
from lockstep.parity.faults.loading import stored_round
from lockstep.reference import ops
from lockstep.reference.checkpoint.stack import Stack
from tests.parity.faults.hand_made import one_call
from tests.parity.faults.planted import check_in_every_way, check_shows, variants
from tests.parity.faults.test_expert_inputs import silu

NAMES = ("gguf/qwen3_mixed.gguf", "models/untied_float32", "qwen3_moe/separate")


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


def test_the_last_matrix_of_an_expert_by_hand():
    """Rows 0 1 | 2 3 | 4 5 taken for 0 1 2 | 3 4 5, and not turned round."""
    down = np.arange(6.0).reshape(3, 2)
    gate, up = np.array([[1.0, 0, 0], [2, 0, 0]]), np.array([[1.0, 0, 0], [1, 0, 0]])
    stacks = [Stack((1, *one.shape), lambda e, one=one: one) for one in (gate, up, down)]
    found = one_call(
        "gguf-dims-reversed", "the last matrices of experts alone", "experts",
        np.array([[[1.0, 0, 0]]]), np.ones((1, 1, 1)), *stacks, per_token=1,
    )  # fmt: skip
    expected = np.array([silu(1.0), silu(2.0)]) @ np.array([[0.0, 1, 2], [3, 4, 5]])
    np.testing.assert_allclose(found, [[expected]], rtol=1e-12)
