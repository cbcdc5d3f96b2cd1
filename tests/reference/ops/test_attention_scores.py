import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import cast, normal, seeds, sizes, whole
from tests.tolerances import assert_close, assert_same_bits


def by_loop(queries, keys, scale: float) -> np.ndarray:
    """Compare query head h with key head h // (H/G), product by product."""
    share = queries.shape[1] // keys.shape[1]
    out = np.zeros((*queries.shape[:3], keys.shape[2]))
    for b, h, i, j in np.ndindex(out.shape):
        pairs = zip(queries[b, h, i].tolist(), keys[b, h // share, j].tolist(), strict=True)
        out[b, h, i, j] = scale * sum(float(q) * float(k) for q, k in pairs)
    return out


@settings(max_examples=30)
@given(seed=seeds, groups=sizes, share=sizes, new=sizes, held=sizes, width=sizes)
def test_follows_its_formula(precision, seed, groups, share, new, held, width):
    """By loop: one key head, as many as query heads, and all between; head width 1 and up."""
    backend, dtype = precision
    queries = normal(seed, 2, groups * share, new, width, dtype=dtype)
    keys = normal(seed + 1, 2, groups, held, width, dtype=dtype)
    found = backend.attention_scores(queries, keys, scale=width**-0.5)
    exact = by_loop(queries, keys, width**-0.5)
    assert_close(found, exact, kind="sum", backend=backend)


@settings(max_examples=20)
@given(seed=seeds, groups=sizes, share=sizes, width=sizes, scale=st.sampled_from([0.5, 1.0, 2.0]))
def test_whole_numbers_are_exact(precision, seed, groups, share, width, scale):
    """By loop: with a scale that is a power of two there is nothing to round, in any dtype."""
    backend, dtype = precision
    queries = whole(seed, 1, groups * share, 3, width, dtype=dtype)
    keys = whole(seed + 1, 1, groups, 4, width, dtype=dtype)
    found = backend.attention_scores(queries, keys, scale=scale)
    assert_close(found, by_loop(queries, keys, scale), kind="exact")


def test_neighbours_share_a_key_head(backend):
    """By hand: heads 0 and 1 read group 0, heads 2 and 3 group 1."""
    queries = np.ones((1, 4, 1, 1), np.float32)
    keys = np.array([10, 20], np.float32).reshape(1, 2, 1, 1)
    found = backend.attention_scores(queries, keys, scale=1.0)
    assert found.ravel().tolist() == [10, 10, 20, 20]


@pytest.mark.parametrize("new, held", [(0, 3), (2, 0), (0, 0)])
def test_no_tokens_and_no_keys(precision, new, held):
    """By hand: (B, H, L, 0) and (B, H, 0, S)."""
    backend, dtype = precision
    queries, keys = normal(0, 2, 4, new, 3, dtype=dtype), normal(0, 2, 2, held, 3, dtype=dtype)
    found = backend.attention_scores(queries, keys, scale=1.0)
    assert (found.shape, found.dtype) == ((2, 4, new, held), dtype)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_propagates(backend, bad):
    """By hand: a bad key to every query that compares with it; inf * 0 is NaN."""
    queries = np.array([1, 0], np.float32).reshape(1, 1, 2, 1)
    keys = np.array([bad, 2], np.float32).reshape(1, 1, 2, 1)
    found = backend.attention_scores(queries, keys, scale=1.0)
    assert_same_bits(found[0, 0], np.array([[bad, 2], [np.nan, 0]], np.float32))


def test_where_the_scale_stands(precision):
    """By hand: 6e4 * 1 * 2 in float16, 3e38 * 0.25 * 2 in float32: who scales the query overflows.

    `reference` scales the product, in float32, and `fast` the query; cpu widens it before.
    """
    backend, dtype = precision
    query, key = (6e4, 0.5) if dtype == np.float16 else (3e38, 0.25)
    arrays = (cast([number], dtype).reshape(1, 1, 1, 1) for number in (query, key))
    found = backend.attention_scores(*arrays, scale=2.0)
    narrow = dtype != np.float64 and backend.name != "reference"
    overflows = narrow and not (backend.name == "cpu" and dtype == np.float16)
    exact = np.inf if overflows else float(cast(query, dtype)) * key * 2
    assert_close(found.ravel(), [exact], kind="exact")


def test_overflow_is_quiet(backend):
    """By hand: 300 * 300 has no float16, and there is no warning."""
    x = np.full((1, 1, 1, 1), 300, np.float16)
    found = backend.attention_scores(x, x, scale=1.0)
    assert_same_bits(found, np.full((1, 1, 1, 1), np.inf, np.float16))


@pytest.mark.parametrize("heads, groups", [(3, 2), (2, 4)])
def test_heads_must_share_evenly(backend, heads, groups):
    """By law: every key head serves as many query heads."""
    queries, keys = normal(0, 1, heads, 2, 4), normal(0, 1, groups, 2, 4)
    with pytest.raises(ValueError, match=f"{heads} query heads, .* multiple of {groups} key heads"):
        backend.attention_scores(queries, keys, scale=1.0)
