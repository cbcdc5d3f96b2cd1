"""Attention of a single query in machine code."""

import ml_dtypes
import numpy as np
import pytest

from lockstep.fast import kernels
from lockstep.fast.cpu import attention, causal_mask
from lockstep.fast.kernels import attend, kernel
from tests.draws import normal
from tests.tolerances import assert_close

SCALE = 0.3


def in_kernel(*arguments, scale=SCALE):
    found = attend.attended(*arguments, scale=scale)
    assert found is not None
    return found


def attended_by_loop(queries, keys, values, seen):
    """Attend in float64, head by head and key by key."""
    out = np.zeros(queries.shape)
    share = queries.shape[1] // keys.shape[1]
    for row, head in np.ndindex(queries.shape[:2]):
        places = np.flatnonzero(seen[row])
        one = queries[row, head, 0].astype(np.float64)
        scores = np.array([SCALE * one @ keys[row, head // share, place] for place in places])
        probs = np.exp(scores - scores.max())
        for prob, place in zip(probs / probs.sum(), places, strict=True):
            out[row, head, 0] += prob * values[row, head // share, place]
    return out


def drawn(held, width=32, room=0):
    """Return queries of six heads, and two groups of keys and values out of a buffer with room."""
    queries = normal(0, 2, 6, 1, width)
    keys, values = (normal(seed, 2, 2, held + room, width)[:, :, :held] for seed in (1, 2))
    return queries, keys, values


@pytest.mark.parametrize("small", [0, 2**62])
@pytest.mark.parametrize("room", [0, 3])
@pytest.mark.parametrize("held", [1, 15, 16, 40])
def test_one_query_over_a_cache(held, room, small, monkeypatch):
    """By loop: over whole vectors of keys and not, with a buffer's room behind them."""
    monkeypatch.setattr(kernel, "SMALL", small)
    queries, keys, values = drawn(held, room=room)
    mask = causal_mask(np.full((2, 1), held - 1), np.tile(np.arange(held), (2, 1)), window=None)
    found = in_kernel(queries, keys, values, mask)
    assert_close(found, attended_by_loop(queries, keys, values, np.ones((2, held))), kind="sum")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("held", "width"), [(1, 32), (40, 32), (40, 48)])
def test_halves_are_read_as_they_lie(held, width, dtype):
    """By law: they are floats of few bits, so all bits are those of the same numbers widened."""
    halves = [one.astype(dtype) for one in drawn(held, width, room=3)]
    mask = causal_mask(np.full((2, 1), held - 1), np.tile(np.arange(held), (2, 1)), window=9)
    found = in_kernel(*halves, mask)
    wide = in_kernel(*(one.astype(np.float32) for one in halves), mask)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wide)
    whole = attention(*halves, mask, scale=SCALE, masked_row="zero")
    np.testing.assert_array_equal(whole, found.astype(dtype))


@pytest.mark.parametrize("halves", [(0,), (1, 2), (1,)])
def test_queries_keys_and_values_of_two_kinds_are_left_to_numpy(halves):
    some = [
        one.astype(np.float16) if at in halves else one for at, one in enumerate(drawn(16))
    ]  # fmt: skip
    mask = causal_mask(np.full((2, 1), 15), np.tile(np.arange(16), (2, 1)), window=None)
    assert attend.attended(*some, mask, scale=SCALE) is None


def test_heads_that_share_keys_have_the_same_bits_on_one_core_and_on_several(monkeypatch):
    """By law: how many heads a core takes together changes none of them."""
    monkeypatch.setattr(kernel, "SMALL", 2**62)
    queries, keys, values = drawn(40)
    mask = causal_mask(np.full((2, 1), 39), np.tile(np.arange(40), (2, 1)), window=None)
    found = []
    for threads in (1, 64):
        monkeypatch.setattr(attend.SETTINGS, "NUMBA_NUM_THREADS", threads)
        found.append(in_kernel(queries, keys, values, mask))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("batch", "heads", "groups", "many"), [(1, 16, 8, 2), (1, 8, 1, 1), (4, 8, 1, 8), (1, 6, 6, 1)]
)
def test_a_core_takes_heads_together_where_there_is_a_group_for_each(
    batch, heads, groups, many, monkeypatch
):
    """By hand: on four cores."""
    monkeypatch.setattr(attend.SETTINGS, "NUMBA_NUM_THREADS", 4)
    assert attend.together(batch, heads, groups) == many


@pytest.mark.parametrize("held", [21, 65])
@pytest.mark.parametrize("width", [16, 48, 64, 80, 128])
def test_heads_of_every_width(width, held):
    """By loop: of one vector and of several; behind few tokens and more."""
    queries, keys, values = drawn(held, width)
    mask = causal_mask(np.full((2, 1), held), np.tile(np.arange(held), (2, 1)), window=None)
    found = in_kernel(queries, keys, values, mask)
    assert_close(found, attended_by_loop(queries, keys, values, np.ones((2, held))), kind="sum")


@pytest.mark.parametrize("held", [12, 34])
@pytest.mark.parametrize("width", [32, 80])
def test_a_window_and_padding_hide_keys(width, held):
    """By loop: rows of unequal length whose newest keys alone are seen."""
    queries, keys, values = drawn(held, width)
    places = np.arange(held)
    positions = np.stack([places, np.where(places < held - 3, places, -1)])
    mask = causal_mask(np.array([[held - 1], [held - 4]]), positions, window=4)
    for hidden in (keys[1], values[1]):  # may hold anything
        hidden[:, held - 3 :], hidden[:, : held - 7] = np.nan, np.nan
    found = in_kernel(queries, keys, values, mask)
    assert_close(found, attended_by_loop(queries, keys, values, mask.mask[:, 0, 0]), kind="sum")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_that_of_the_other_way(bad, monkeypatch):
    """By law: NaN and infinities come out as NumPy's way has them."""
    queries, keys, values = drawn(5)
    queries[0, 0, 0, 0] = bad
    mask = causal_mask(np.full((2, 1), 4), np.tile(np.arange(5), (2, 1)), window=None)
    found = in_kernel(queries, keys, values, mask)
    monkeypatch.setattr(kernels, "available", lambda: False)
    plain = attention(queries, keys, values, mask, scale=SCALE, masked_row="uniform")
    np.testing.assert_array_equal(np.isnan(found), np.isnan(plain))
    assert np.isnan(found[0, 0]).all()
    assert np.isfinite(found[1]).all()


def test_exponentials_over_their_whole_range():
    """By law: a head that attends to two keys shows e to the difference of their scores."""
    gaps = np.linspace(0, 100, 2001, dtype=np.float32)
    queries = np.zeros((len(gaps), 1, 1, 16), np.float32)
    queries[:, 0, 0, 0] = -gaps
    keys, values = (np.zeros((len(gaps), 1, 2, 16), np.float32) for _ in "kv")
    keys[:, 0, 1, 0] = values[:, 0, 1] = 1
    mask = causal_mask(np.ones((len(gaps), 1), int), np.tile([0, 1], (len(gaps), 1)), window=None)
    found = in_kernel(queries, keys, values, mask, scale=1.0)[:, 0, 0, 0]
    power = np.exp(-gaps.astype(np.float64))
    exact = power / (1 + power)
    seen = gaps < 87
    assert np.abs(found[seen] / exact[seen] - 1).max() < 3e-7
    assert (np.abs(found[~seen]) < 1e-37).all()


@pytest.mark.parametrize("why", ["two queries", "half precision", "a width of 24", "no key"])
def test_what_has_no_kernel_is_left_to_numpy(why):
    queries, keys, values = drawn(0 if why == "no key" else 3, 24 if "24" in why else 32)
    held, count = keys.shape[2], 2 if why == "two queries" else 1
    queries = np.repeat(queries, count, axis=2)
    if why == "half precision":
        queries = queries.astype(np.float16)
    mask = causal_mask(np.full((2, count), held), np.tile(np.arange(held), (2, 1)), window=None)
    assert attend.attended(queries, keys, values, mask, scale=SCALE) is None


@pytest.mark.parametrize("other", ["wider values", "narrower values", "fewer keys", "one row"])
def test_arrays_that_do_not_belong_together_are_left_to_numpy(other):
    """By law: nothing is read or written behind the end of an array."""
    queries, keys, values = drawn(9)
    if "values" in other:
        values = normal(3, 2, 2, 9, 48 if "wider" in other else 16)
    elif other == "fewer keys":
        keys = keys[:, :, :5]
    else:
        keys, values = keys[:1], values[:1]
    held = keys.shape[2]
    mask = causal_mask(np.full((2, 1), held), np.tile(np.arange(held), (2, 1)), window=None)
    assert attend.attended(queries, keys, values, mask, scale=SCALE) is None


def test_a_policy_that_does_not_exist_is_refused_for_one_query_too():
    queries, keys, values = drawn(3)
    mask = causal_mask(np.full((2, 1), 2), np.tile(np.arange(3), (2, 1)), window=None)
    with pytest.raises(ValueError, match="masked_row='zeros'"):
        attention(queries, keys, values, mask, scale=SCALE, masked_row="zeros")
