"""Room that is asked for before its tokens are there: by hand."""

import numpy as np
import pytest

from lockstep.reference import ops
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.growing import Growing
from lockstep.reference.stores.preallocated import Preallocated

ONE = np.ones((1, 2, 1, 16), np.float32)


@pytest.mark.parametrize("store", [Growing, lambda zeros: Preallocated(4, zeros)])
def test_what_is_reserved_is_what_is_appended_to(store):
    """By hand: but for the writing, both do the same."""
    one, other = store(np.zeros), store(np.zeros)
    for start in range(3):
        one.append(ops, ONE, start)
        buffer = other.reserve(ops, ONE, start)
        assert buffer is other.buffer and not buffer[:, :, start].any()
        buffer[:, :, start] = 1
    np.testing.assert_array_equal(one.buffer, other.buffer)
    assert other.held == 3
    with pytest.raises(ValueError, match="new tokens at 5"):
        other.reserve(ops, ONE, 5)


def test_a_branch_is_given_room_of_its_own():
    """By hand: what one of two writes, the other never reads."""
    store = Growing(np.zeros)
    store.append(ops, ONE, 0)
    branch = store.branch()
    assert branch.reserve(ops, ONE, 1) is not store.buffer
    assert store.reserve(ops, ONE, 1) is not branch.buffer
    np.testing.assert_array_equal(branch.buffer[:, :, :1], ONE)


def test_a_cache_reserves_where_all_tokens_lie_side_by_side():
    """By hand: at the last of the positions that it has; None of a layer that holds otherwise."""
    cache = Cache([(Growing(np.zeros), Growing(np.zeros))], name="growing")
    cache.positions.extend(np.array([[0, 1]]))
    cache.update(ops, 0, *[np.concatenate([ONE, ONE], axis=2)] * 2)
    cache.positions.extend(np.array([[2]]))
    keys, values = cache.reserve(ops, 0, ONE, ONE)
    assert keys is cache.keys[0].buffer and values is cache.values[0].buffer
    assert cache.keys[0].held == 3
    cache.values[0] = object()
    assert cache.reserve(ops, 0, ONE, ONE) is None
