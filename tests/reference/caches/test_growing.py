"""The growing cache holds what was given to it, in order; tests/fast/caches has the other one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference import ops
from lockstep.reference.caches.growing import GrowingCache
from tests.draws import normal, seeds
from tests.tolerances import assert_same_bits

steps = st.lists(st.integers(0, 4), min_size=1, max_size=5)


@settings(max_examples=30)
@given(seed=seeds, steps=steps, dtype=st.sampled_from([np.float64, np.float32, np.float16]))
def test_holds_all_tokens_in_order(seed, steps, dtype):
    """By loop: every step gives the slices of one long array, layer by layer."""
    keys, values = (normal(seed + i, 2, 3, sum(steps), 4, dtype=dtype) for i in range(2))
    cache, stop = GrowingCache(2), 0
    for new in steps:
        start, stop = stop, stop + new
        for layer, sign in enumerate((1, -1)):
            parts = (sign * part[:, :, start:stop] for part in (keys, values))
            held_keys, held_values = cache.update(ops, layer, *parts)
            assert_same_bits(held_keys, sign * keys[:, :, :stop])
            assert_same_bits(held_values, sign * values[:, :, :stop])


def test_what_was_returned_stays_as_it_was():
    """By law: a later step makes new arrays."""
    cache, first = GrowingCache(1), normal(0, 1, 1, 2, 4)
    held, _ = cache.update(ops, 0, first, first)
    cache.update(ops, 0, -first, -first)
    assert_same_bits(held, first)


def test_keys_and_values_may_differ_in_width():
    """By hand: nothing ties the two together but their tokens."""
    cache = GrowingCache(1)
    for _ in range(2):
        keys, values = cache.update(ops, 0, normal(0, 1, 2, 3, 4), normal(1, 1, 2, 3, 6))
    assert (keys.shape, values.shape) == ((1, 2, 6, 4), (1, 2, 6, 6))


def test_an_empty_cache_holds_nothing():
    """By hand: no layer, no position."""
    cache = GrowingCache(3)
    assert cache.keys == cache.values == [None] * 3
    assert cache.positions.length == 0


def test_one_cache_has_one_dtype():
    """By law: the operation that appends refuses another."""
    cache, x = GrowingCache(1), normal(0, 1, 1, 2, 4)
    cache.update(ops, 0, x, x)
    with pytest.raises(ValueError, match="but the cache holds float32"):
        cache.update(ops, 0, x.astype(np.float16), x.astype(np.float16))
