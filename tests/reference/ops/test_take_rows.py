import numpy as np
import pytest
from hypothesis import given, settings

from tests.draws import normal, seeds, sizes
from tests.tolerances import assert_same_bits


@settings(max_examples=20)
@given(seed=seeds, batch=sizes, length=sizes, width=sizes)
def test_keeps_one_token_of_each_row(precision, seed, batch, length, width):
    """By loop."""
    backend, dtype = precision
    x = normal(seed, batch, length, width, dtype=dtype)
    index = np.random.default_rng(seed).integers(0, length, batch)
    out = backend.take_rows(x, index)
    assert out.shape == (batch, 1, width)
    for row in range(batch):
        assert_same_bits(out[row, 0], x[row, index[row]])


@settings(max_examples=20)
@given(seed=seeds, batch=sizes, length=sizes, width=sizes, count=sizes)
def test_keeps_several_tokens_of_each_row(precision, seed, batch, length, width, count):
    """By loop: in any order, and one more than once."""
    backend, dtype = precision
    x = normal(seed, batch, length, width, dtype=dtype)
    index = np.random.default_rng(seed).integers(-length, length, (batch, count))
    out = backend.take_rows(x, index)
    assert out.shape == (batch, count, width)
    for row in range(batch):
        for number in range(count):
            assert_same_bits(out[row, number], x[row, index[row, number]])


def test_a_negative_index_counts_from_the_end(backend):
    """By hand: -1 is the last token, -3 of 3 the first."""
    x = normal(0, 2, 3, 4)
    out = backend.take_rows(x, np.array([-1, -3]))
    assert_same_bits(out[:, 0], np.stack([x[0, 2], x[1, 0]]))


def test_reversed_views(backend):
    """By law: the index may be a view of any strides."""
    x = normal(0, 2, 3, 4)
    found = backend.take_rows(x, np.array([1, 2])[::-1])
    assert_same_bits(found[:, 0], np.stack([x[0, 2], x[1, 1]]))


def test_no_rows(backend):
    """By hand: a batch of none."""
    assert backend.take_rows(normal(0, 0, 3, 4), np.zeros(0, np.int64)).shape == (0, 1, 4)
    assert backend.take_rows(normal(0, 0, 3, 4), np.zeros((0, 2), np.int64)).shape == (0, 2, 4)


def test_no_tokens(backend):
    """By hand: none of each row."""
    assert backend.take_rows(normal(0, 2, 3, 4), np.zeros((2, 0), np.int64)).shape == (2, 0, 4)


OUTSIDE = [(3, [3, 0]), (3, [0, -4]), (0, [-1, -1]), (3, [[0, 1], [2, 3]])]


@pytest.mark.parametrize(("length", "index"), OUTSIDE)
def test_an_index_outside_the_row_is_refused(backend, length, index):
    """By law: nothing beside the row is ever read."""
    with pytest.raises(IndexError, match="out of bounds"):
        backend.take_rows(normal(0, 2, length, 4), np.array(index))
