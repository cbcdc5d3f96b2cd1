"""Parts of a stored matrix are those of the matrix. By law, on random parts of a random matrix."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from lockstep.reference.checkpoint.safetensors import SafetensorsFile

MATRIX = np.arange(7 * 12, dtype=np.float32).reshape(7, 12)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> SafetensorsFile:
    path = tmp_path_factory.mktemp("spans") / "model.safetensors"
    stack = np.arange(2 * 3 * 4, dtype=np.int16).reshape(2, 3, 4)
    save_file({"other": MATRIX[::-1].copy(), "matrix": MATRIX, "stack": stack}, path)
    return SafetensorsFile(path)


def some(length: int) -> st.SearchStrategy:
    one = st.tuples(st.integers(0, length - 1), st.integers(1, length)).filter(
        lambda span: span[0] < span[1]
    )
    return st.none() | st.lists(one, min_size=1, max_size=3).map(tuple)


def taken(matrix: np.ndarray, rows, columns) -> np.ndarray:
    """Take spans by NumPy."""
    for axis, spans in ((0, rows), (1, columns)):
        if spans is not None:
            index = np.concatenate([np.arange(*span) for span in spans])
            matrix = matrix.take(index, axis=axis)
    return matrix


@given(rows=some(7), columns=some(12))
def test_a_part_of_a_matrix(file, rows, columns):
    found = file.read_part("matrix", rows, columns, 12)
    np.testing.assert_array_equal(found, taken(MATRIX, rows, columns))


def test_columns_may_stand_for_several_and_a_stack_is_rows_behind_each_other(file):
    """By hand: a row of 12 numbers that stands for 24 columns; rows 1 and 2 of the second."""
    np.testing.assert_array_equal(
        file.read_part("matrix", ((1, 2),), ((8, 16),), 24), MATRIX[1:2, 4:8]
    )
    np.testing.assert_array_equal(
        file.read_part("stack", ((4, 6),), ((2, 4),), 4), [[18, 19], [22, 23]]
    )
