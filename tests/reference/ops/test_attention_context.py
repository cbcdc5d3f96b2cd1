import numpy as np
import pytest
from hypothesis import given, settings

from tests.draws import cast, normal, seeds, sizes, whole
from tests.tolerances import assert_close, assert_same_bits

NAN, INF = np.nan, np.inf


def by_loop(probs, values) -> np.ndarray:
    """Average the values of group h // (H/G), product by product."""
    share = probs.shape[1] // values.shape[1]
    out = np.zeros((*probs.shape[:3], values.shape[-1]))
    for b, h, i, d in np.ndindex(out.shape):
        column = values[b, h // share, :, d].tolist()
        pairs = zip(probs[b, h, i].tolist(), column, strict=True)
        out[b, h, i, d] = sum(float(p) * float(v) for p, v in pairs)
    return out


def all_seen(backend, new: int, held: int, batch: int = 1):
    """Make a mask in which every query sees every key."""
    key = np.tile(np.arange(held), (batch, 1))
    return backend.causal_mask(np.full((batch, new), held), key, window=None)


@settings(max_examples=30)
@given(seed=seeds, groups=sizes, share=sizes, new=sizes, held=sizes, width=sizes)
def test_follows_its_formula(precision, seed, groups, share, new, held, width):
    """By loop: one value head, as many as query heads, and all between; head width 1 and up."""
    backend, dtype = precision
    probs = normal(seed, 2, groups * share, new, held, dtype=dtype)
    values = normal(seed + 1, 2, groups, held, width, dtype=dtype)
    found = backend.attention_context(probs, values, all_seen(backend, new, held, 2))
    assert_close(found, by_loop(probs, values), kind="sum", backend=backend)


@settings(max_examples=20)
@given(seed=seeds, groups=sizes, share=sizes, held=sizes)
def test_whole_numbers_are_exact(precision, seed, groups, share, held):
    """By loop: every order of summing them gives the same bits, in any dtype."""
    backend, dtype = precision
    probs = whole(seed, 1, groups * share, 2, held, dtype=dtype)
    values = whole(seed + 1, 1, groups, held, 3, dtype=dtype)
    found = backend.attention_context(probs, values, all_seen(backend, 2, held))
    assert_close(found, by_loop(probs, values), kind="exact")


def test_neighbours_share_a_value_head(backend):
    """By hand: heads 0 and 1 read group 0, heads 2 and 3 group 1."""
    probs = np.ones((1, 4, 1, 1), np.float32)
    values = np.array([10, 20], np.float32).reshape(1, 2, 1, 1)
    found = backend.attention_context(probs, values, all_seen(backend, 1, 1))
    assert found.ravel().tolist() == [10, 10, 20, 20]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_masked_value_contributes_nothing(backend, bad):
    """By hand: key 1 is hidden from query 0. `fast` multiplies it by 0, and says so: NaN."""
    probs = np.array([[1, 0], [0.5, 0.5]], np.float32)[None, None]
    values = np.array([[3], [bad]], np.float32)[None, None]
    mask = backend.causal_mask(np.array([[0, 1]]), np.array([[0, 1]]), window=None)
    found = backend.attention_context(probs, values, mask)
    first = 3 if backend.name == "reference" else NAN
    assert_same_bits(found.ravel(), np.array([first, bad], np.float32))


def test_the_other_columns_are_as_ever(backend):
    """By hand: NaN in one dimension of a value says nothing of its other dimensions."""
    values = np.array([[1, NAN], [3, 4]], np.float32)[None, None]
    probs = np.full((1, 1, 1, 2), 0.5, np.float32)
    found = backend.attention_context(probs, values, all_seen(backend, 1, 2))
    assert_same_bits(found.ravel(), np.array([2, NAN], np.float32))


def test_a_row_that_sees_nothing_keeps_its_probabilities(backend):
    """By hand: uniform over hidden keys is their mean, and NaN if one of them is."""
    mask = backend.causal_mask(np.array([[0]]), np.array([[1, 2]]), window=None)
    probs = np.full((1, 1, 1, 2), 0.5, np.float32)
    values = np.array([[2, NAN], [4, 1]], np.float32)[None, None]
    found = backend.attention_context(probs, values, mask)
    assert_same_bits(found.ravel(), np.array([3, NAN], np.float32))


@pytest.mark.parametrize("new, held", [(2, 0), (0, 3), (0, 0)])
def test_no_keys_and_no_queries(precision, new, held):
    """By hand: a sum over no keys is 0."""
    backend, dtype = precision
    probs, values = normal(0, 1, 4, new, held, dtype=dtype), normal(0, 1, 2, held, 3, dtype=dtype)
    found = backend.attention_context(probs, values, all_seen(backend, new, held))
    assert_same_bits(found, np.zeros((1, 4, new, 3), dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_overflow_is_quiet(backend, dtype):
    """By hand: probabilities that sum to a little more than 1, over the largest number."""
    probs = np.full((1, 1, 1, 2), 0.51, dtype)
    values = np.full((1, 1, 2, 1), np.finfo(dtype).max, dtype)
    found = backend.attention_context(probs, values, all_seen(backend, 1, 2))
    assert_same_bits(found.ravel(), cast([INF], dtype))


def test_what_is_no_number_is_quiet(backend):
    """By hand: infinity times 0. BLAS tells of such now and then where there is none, too."""
    probs = np.array([INF, 0.5], np.float32).reshape(1, 1, 1, 2)
    values = np.array([0, 1], np.float32).reshape(1, 1, 2, 1)
    found = backend.attention_context(probs, values, all_seen(backend, 1, 2))
    assert_same_bits(found.ravel(), cast([NAN], np.float32))
