import numpy as np
import pytest
from hypothesis import given, settings

from tests.draws import normal, seeds, sizes, whole
from tests.rounding import nearest
from tests.tolerances import assert_close, assert_same_bits


def by_loop(y, tokens, a, b, scale) -> np.ndarray:
    """Add up every path from a token over the rank to an output, in Python's floats."""
    out = y.astype(np.float64)
    for i, l, k in np.ndindex(out.shape):  # noqa: E741
        for r in range(len(a)):
            out[i, l, k] += scale * float(b[tokens[i, l], r]) * float(a[r, k])
    return out


def drawn(seed, batch, length, rows) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, rows, (batch, length))


@settings(max_examples=30)
@given(seed=seeds, batch=sizes, length=sizes, rows=sizes, width=sizes, rank=sizes)
def test_follows_its_formula(backend, seed, batch, length, rows, width, rank):
    """By loop."""
    y, tokens = normal(seed, batch, length, width), drawn(seed, batch, length, rows)
    a, b = normal(seed + 2, rank, width), normal(seed + 3, rows, rank)
    found = backend.add_lora_rows(y, tokens, a, b, scale=2.5)
    exact = by_loop(y, tokens, a, b, 2.5)
    size = by_loop(abs(y), tokens, abs(a), abs(b), 2.5)
    assert (np.abs(found - exact) <= 2e-6 * size.max()).all()


@settings(max_examples=30)
@given(seed=seeds, rank=sizes)
def test_whole_numbers_are_exact(precision, seed, rank):
    """By loop: in every dtype, whatever the order."""
    backend, dtype = precision
    y, tokens = whole(seed, 1, 2, 3, dtype=dtype), drawn(seed, 1, 2, 5)
    a, b = whole(seed + 2, rank, 3, bound=1), whole(seed + 3, 5, rank, bound=1)
    found = backend.add_lora_rows(y, tokens, a, b, scale=2.0)
    assert_close(found, by_loop(y, tokens, a, b, 2.0), kind="exact")


def test_it_is_the_lookup_in_the_adapted_table(backend):
    """By law: rows of table + scale * b @ a."""
    table, a, b = normal(0, 7, 4), normal(1, 2, 4), normal(2, 7, 2)
    tokens = np.array([[3, 0, 6]])
    found = backend.add_lora_rows(table[tokens], tokens, a, b, scale=0.5)
    np.testing.assert_allclose(found, (table + 0.5 * b @ a)[tokens], rtol=0, atol=2e-6)


@pytest.mark.parametrize("rank", [1, 4, 8])
def test_the_scale_is_not_divided_by_the_rank(backend, rank):
    """By hand: every rank adds 20 * 1 * 1."""
    y, ones = np.ones((1, 1, 1), np.float32), np.ones((rank, 1), np.float32)
    found = backend.add_lora_rows(y, np.zeros((1, 1), int), ones, ones.T, scale=20.0)
    assert found.item() == 1 + 20 * rank


def test_nothing_learned_changes_nothing(precision):
    """By law: b = 0 gives the bits of the base."""
    backend, dtype = precision
    y, tokens = normal(0, 2, 3, 4, dtype=dtype), drawn(0, 2, 3, 5)
    found = backend.add_lora_rows(
        y, tokens, normal(2, 2, 4), np.zeros((5, 2), np.float32), scale=20.0
    )
    assert_same_bits(found, y)


def test_it_is_rounded_before_it_is_added(precision):
    """By hand: the matrices are not rounded to the dtype, what they add is, and then the sum."""
    backend, dtype = precision
    a, b = np.array([[1 + 2**-10]], np.float32), np.array([[1 - 2**-10]], np.float32)
    one = np.ones((1, 1, 1), dtype)
    found = backend.add_lora_rows(one, np.zeros((1, 1), int), a, b, scale=1.0)
    delta = nearest(1 - 2**-20, dtype)
    assert_close(found, nearest(1 + delta, dtype).reshape(1, 1, 1), kind="exact")


def test_no_tokens(backend):
    """By hand: nothing in, nothing out."""
    y, tokens = np.zeros((0, 2, 4), np.float32), np.zeros((0, 2), int)
    found = backend.add_lora_rows(y, tokens, normal(2, 2, 4), normal(3, 5, 2), scale=1.0)
    assert found.shape == y.shape


@pytest.mark.parametrize("a, b", [((2, 5), (3, 2)), ((2, 4), (3, 1)), ((3, 4), (3, 2))])
def test_shapes_must_agree(backend, a, b):
    """By law: b has the rank of a, and a the width of the table."""
    y, tokens = normal(0, 1, 1, 4), np.zeros((1, 1), int)
    with pytest.raises(ValueError, match="do not make y"):
        backend.add_lora_rows(y, tokens, normal(2, *a), normal(3, *b), scale=1.0)


def test_an_id_beyond_the_table(backend):
    y, tokens = normal(0, 1, 1, 4), np.array([[3]])
    with pytest.raises(IndexError):
        backend.add_lora_rows(y, tokens, normal(2, 2, 4), normal(3, 3, 2), scale=1.0)
