import numpy as np
import pytest
from hypothesis import given, settings

from tests.draws import normal, seeds, sizes, whole
from tests.rounding import nearest
from tests.tolerances import assert_close, assert_same_bits


def by_loop(y, x, a, b, scale) -> np.ndarray:
    """Add up every path from an input over the rank to an output, in Python's floats."""
    out = y.astype(np.float64)
    for i, l, n in np.ndindex(out.shape):  # noqa: E741
        for r, k in np.ndindex(a.shape):
            out[i, l, n] += scale * float(b[n, r]) * float(a[r, k]) * float(x[i, l, k])
    return out


@settings(max_examples=30)
@given(seed=seeds, batch=sizes, length=sizes, rows=sizes, columns=sizes, rank=sizes)
def test_follows_its_formula(backend, seed, batch, length, rows, columns, rank):
    """By loop."""
    y, x = normal(seed, batch, length, rows), normal(seed + 1, batch, length, columns)
    a, b = normal(seed + 2, rank, columns), normal(seed + 3, rows, rank)
    found = backend.add_lora(y, x, a, b, scale=2.5)
    exact, size = by_loop(y, x, a, b, 2.5), by_loop(*map(np.abs, (y, x, a, b)), 2.5)
    assert (np.abs(found - exact) <= 2e-6 * size.max()).all()


@settings(max_examples=30)
@given(seed=seeds, rank=sizes)
def test_whole_numbers_are_exact(precision, seed, rank):
    """By loop: in every dtype, whatever the order."""
    backend, dtype = precision
    y, x = whole(seed, 1, 2, 3, dtype=dtype), whole(seed + 1, 1, 2, 2, dtype=dtype, bound=1)
    a, b = whole(seed + 2, rank, 2, bound=1), whole(seed + 3, 3, rank, bound=1)
    found = backend.add_lora(y, x, a, b, scale=2.0)
    assert_close(found, by_loop(y, x, a, b, 2.0), kind="exact")


@pytest.mark.parametrize("rank", [1, 4, 8])
def test_the_scale_is_not_divided_by_the_rank(backend, rank):
    """By hand: every rank adds 20 * 1 * 1."""
    one = np.ones((1, 1, 1), np.float32)
    found = backend.add_lora(one, one, np.ones((rank, 1), np.float32),
                             np.ones((1, rank), np.float32), scale=20.0)  # fmt: skip
    assert found.item() == 1 + 20 * rank


def test_nothing_learned_changes_nothing(precision):
    """By law: B = 0, as training begins, gives the bits of the base."""
    backend, dtype = precision
    y, x = normal(0, 2, 3, 5, dtype=dtype), normal(1, 2, 3, 4, dtype=dtype)
    found = backend.add_lora(y, x, normal(2, 2, 4), np.zeros((5, 2), np.float32), scale=20.0)
    assert_same_bits(found, y)


def test_it_is_rounded_before_it_is_added(precision):
    """By hand: the matrices are not rounded to the dtype, what they add is, and then the sum."""
    backend, dtype = precision
    one = np.ones((1, 1, 1), dtype)
    a, b = np.array([[1 + 2**-10]], np.float32), np.array([[1 - 2**-10]], np.float32)
    found = backend.add_lora(one, one, a, b, scale=1.0)
    delta = nearest(1 - 2**-20, dtype)
    assert_close(found, nearest(1 + delta, dtype).reshape(1, 1, 1), kind="exact")


@pytest.mark.parametrize("bad, answer", [(np.nan, np.nan), (np.inf, np.inf)])
def test_what_is_not_finite_propagates(backend, bad, answer):
    """By hand: to its own token alone."""
    x, one = np.array([[[bad], [1]]], np.float32), np.ones((1, 1), np.float32)
    found = backend.add_lora(np.zeros((1, 2, 1), np.float32), x, one, one, scale=1.0)
    assert_same_bits(found, np.array([[[answer], [1]]], np.float32))


@pytest.mark.parametrize("shape", [(0, 2), (1, 0)])
def test_no_tokens(backend, shape):
    """By hand: nothing in, nothing out."""
    y, x = normal(0, *shape, 3), normal(1, *shape, 4)
    assert backend.add_lora(y, x, normal(2, 2, 4), normal(3, 3, 2), scale=1.0).shape == y.shape


@pytest.mark.parametrize("a, b", [((2, 5), (3, 2)), ((2, 4), (3, 1)), ((2, 4), (2, 3))])
def test_shapes_must_agree(backend, a, b):
    """By law: A takes the input, B gives the output, and they share a rank."""
    y, x = normal(0, 1, 1, 3), normal(1, 1, 1, 4)
    with pytest.raises(ValueError, match="do not make y"):
        backend.add_lora(y, x, normal(2, *a), normal(3, *b), scale=1.0)
