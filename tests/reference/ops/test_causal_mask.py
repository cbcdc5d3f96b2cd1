import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import seeds

WINDOWS = st.one_of(st.none(), st.integers(1, 20))
lengths = st.integers(0, 7)


def by_loop(query, key, window) -> np.ndarray:
    """Ask of every pair of positions whether the key may be seen."""
    out = np.zeros((len(query), 1, query.shape[1], key.shape[1]), bool)
    for b, _, i, j in np.ndindex(out.shape):
        distance = query[b, i] - key[b, j]
        near = window is None or distance < window
        out[b, 0, i, j] = key[b, j] >= 0 and distance >= 0 and near
    return out


@settings(max_examples=60)
@given(seed=seeds, batch=st.integers(1, 3), queries=lengths, keys=lengths, window=WINDOWS)
def test_follows_its_definition(backend, seed, batch, queries, keys, window):
    """By loop: repeated and unsorted positions, and padding at -1."""
    rng = np.random.default_rng(seed)
    query, key = rng.integers(-1, 9, (batch, queries)), rng.integers(-1, 9, (batch, keys))
    mask = backend.seen(backend.causal_mask(query, key, window=window))
    np.testing.assert_array_equal(mask, by_loop(query, key, window))
    assert mask.dtype == bool


@settings(max_examples=60)
@given(seed=seeds, batch=st.integers(1, 3), queries=lengths, keys=lengths, window=WINDOWS)
def test_keys_that_stand_elsewhere_for_each_query(backend, seed, batch, queries, keys, window):
    """By loop: each query alone, with its own row of positions."""
    rng = np.random.default_rng(seed)
    query, key = rng.integers(-1, 9, (batch, queries)), rng.integers(-1, 9, (batch, queries, keys))
    mask = backend.seen(backend.causal_mask(query, key, window=window))
    assert mask.shape == (batch, 1, queries, keys)
    for one in range(queries):
        alone = by_loop(query[:, one : one + 1], key[:, one], window)
        np.testing.assert_array_equal(mask[:, :, one : one + 1], alone)


@settings(max_examples=40)
@given(held=lengths, new=lengths, batch=st.integers(1, 3), window=WINDOWS)
def test_a_step_in_order(backend, held, new, batch, window):
    """By loop: the positions of a prefill and of a decode step, which `fast` recognises."""
    key = np.tile(np.arange(held + new), (batch, 1))
    mask = backend.seen(backend.causal_mask(key[:, held:], key, window=window))
    np.testing.assert_array_equal(mask, by_loop(key[:, held:], key, window))


TABLE = [  # query positions, key positions, window, mask
    ([0, 1, 2], [0, 1, 2], None, ["x..", "xx.", "xxx"]),
    ([0, 1, 2], [0, 1, 2], 1, ["x..", ".x.", "..x"]),
    ([0, 1, 2], [0, 1, 2], 2, ["x..", "xx.", ".xx"]),
    ([0, 1, 2], [0, 1, 2], 3, ["x..", "xx.", "xxx"]),
    ([0, 1, 2], [0, 1, 2], 99, ["x..", "xx.", "xxx"]),
    ([2], [0, 1, 2], None, ["xxx"]),
    ([2], [0, 1, 2], 2, [".xx"]),
    ([1, 2], [0, 1, 2], None, ["xx.", "xxx"]),  # a step of two: the bottom right
    ([0, 1, 2], [2], None, [".", ".", "x"]),  # more queries than keys
    ([0], [1, 2], None, [".."]),  # before every key
    ([1], [-1, 0, 1], None, [".xx"]),  # padding
    ([1], [1, 0, 1], None, ["xxx"]),  # repeated
    ([2**31], [2**31, 2**31 + 1], 1, ["x."]),
    ([1], [], None, [""]),
]


@pytest.mark.parametrize("query, key, window, picture", TABLE)
def test_pictures(backend, query, key, window, picture):
    """By hand."""
    query, key = (np.array([row], np.int64) for row in (query, key))
    mask = backend.seen(backend.causal_mask(query, key, window=window))
    drawn = ["".join(".x"[seen] for seen in row) for row in mask[0, 0].astype(int)]
    assert drawn == picture


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_sees_one_key_at_least(backend, window):
    """By law: the window counts the query itself."""
    place = np.array([[0]])
    with pytest.raises(ValueError, match=f"window={window}, but should be at least 1, or None"):
        backend.causal_mask(place, place, window=window)
