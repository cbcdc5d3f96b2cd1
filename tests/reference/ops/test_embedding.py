import numpy as np
import pytest
from hypothesis import given, settings

from tests.draws import normal, packed_matrix, places, seeds, sizes
from tests.ops_backends import DTYPES
from tests.tolerances import assert_close, assert_same_bits

FLOAT32 = DTYPES["float32"]


@settings(max_examples=20)
@given(seed=seeds, batch=sizes, length=sizes, rows=sizes, width=sizes)
def test_gives_each_token_its_row(precision, seed, batch, length, rows, width):
    """By loop: the row, rounded once to the dtype that is asked for."""
    backend, dtype = precision
    table, tokens = normal(seed, rows, width), places(seed, batch, length, stop=rows)
    found = backend.embedding(tokens, table, dtype=dtype)
    exact = [[table[token] for token in row] for row in tokens.tolist()]
    assert_close(found, exact, kind="exact")
    assert found.dtype == dtype


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_packed_tables(precision, bits):
    """By loop: the exact values of the codes; MLX unpacks in `dtype`, as its docstring says."""
    backend, dtype = precision
    table, exact = packed_matrix(bits, 9, 64, bits=bits, group=32)
    tokens = places(0, 2, 5, stop=9)
    found = backend.embedding(tokens, table, dtype=dtype)
    assert_close(found, exact[tokens], kind="sum", backend=backend)
    assert found.dtype == dtype


@pytest.mark.parametrize("bad", [-1, 3, 2**31, -(2**31), 2**40])
@pytest.mark.parametrize("packed", [False, True])
def test_ids_outside_the_table_are_refused(backend, bad, packed):
    """By law: -1 is not the last row, and nothing behind the table is read."""
    table = packed_matrix(0, 3, 32, bits=4, group=32)[0] if packed else normal(0, 3, 4)
    tokens = np.array([[0, 2], [bad, -7]])
    with pytest.raises(ValueError, match=rf"token id {bad}, but should be 0\.\.2"):
        backend.embedding(tokens, table, dtype=FLOAT32)


@pytest.mark.parametrize("packed", [False, True])
def test_no_tokens(precision, packed):
    """By hand: no tokens have a width all the same."""
    backend, dtype = precision
    table = packed_matrix(0, 3, 32, bits=3, group=32)[0] if packed else normal(0, 3, 32)
    found = backend.embedding(np.zeros((2, 0), np.int64), table, dtype=dtype)
    assert (found.shape, found.dtype) == ((2, 0, 32), dtype)


@pytest.mark.parametrize("packed", [False, True])
def test_reversed_views(backend, packed):
    """By law: tokens may be a view of any strides."""
    table = packed_matrix(0, 3, 32, bits=4, group=32)[0] if packed else normal(0, 3, 32)
    tokens = np.array([[0, 1, 2]])
    found = backend.embedding(tokens[:, ::-1], table, dtype=FLOAT32)
    assert_same_bits(found, backend.embedding(tokens, table, dtype=FLOAT32)[:, ::-1])


def test_what_is_too_large_becomes_infinite(backend):
    """By hand: 70000 has no float16; there is no warning, and NaN stays NaN."""
    table = np.array([[70000, -70000, np.nan, -0.0]], np.float32)
    found = backend.embedding(np.array([[0]]), table, dtype=DTYPES["float16"])
    assert_same_bits(found[0], np.array([[np.inf, -np.inf, np.nan, -0.0]], np.float16))
