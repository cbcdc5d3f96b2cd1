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
        assert other.held == start
        buffer[:, :, start] = 1
        other.reach(start + 1)
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


@pytest.mark.parametrize("shape", [(1, 1, 1, 16), (1, 4, 1, 16), (1, 2, 1, 8), (2, 2, 1, 16)])
def test_tokens_of_another_shape_are_refused(shape):
    """By hand: those that NumPy would repeat, and those that a kernel would write beside it."""
    store = Growing(np.zeros)
    store.append(ops, ONE, 0)
    said = r"new tokens of \(B, G, D\) = .*, but the cache holds \(1, 2, 16\)"
    for ask in (store.append, store.reserve):
        with pytest.raises(ValueError, match=said):
            ask(ops, np.full(shape, 2, np.float32), 1)
    assert store.held == 1 and store.buffer.max() == 1


def test_what_is_reserved_and_not_written_is_not_held():
    """By hand: nobody goes on behind it, nor behind what was there before it."""
    store = Growing(np.zeros)
    store.append(ops, np.concatenate([ONE, ONE], axis=2), 0)
    store.reserve(ops, ONE, 1)
    with pytest.raises(ValueError, match="new tokens at 2, but the cache holds 1"):
        store.append(ops, ONE, 2)
    store.append(ops, ONE, 1)
    assert store.held == 2


def test_a_cache_reserves_where_all_tokens_lie_side_by_side():
    """By hand: at the last of the positions that it has; None of a layer that holds otherwise."""
    cache = Cache([(Growing(np.zeros), Growing(np.zeros))], name="growing")
    cache.positions.extend(np.array([[0, 1]]))
    cache.update(ops, 0, *[np.concatenate([ONE, ONE], axis=2)] * 2)
    cache.positions.extend(np.array([[2]]))
    keys, values = cache.reserve(ops, 0, ONE, ONE)
    assert keys is cache.keys[0].buffer and values is cache.values[0].buffer
    assert cache.keys[0].held == cache.values[0].held == 2
    cache.reach(1)
    assert cache.keys[0].held == cache.values[0].held == 3
    cache.values[0] = object()
    assert cache.reserve(ops, 0, ONE, ONE) is None


def test_a_buffer_is_reserved_again_if_it_would_be_returned_again():
    """By law: as by `reserve`; not another one, nor one that is full, short, or read by others."""
    store = Growing(np.zeros)
    store.append(ops, np.concatenate([ONE, ONE], axis=2), 0)
    buffer = store.reserve(ops, ONE, 2)
    assert store.reserve_again(buffer, 2) and store.held == 2
    assert not store.reserve_again(buffer.copy(), 2)
    assert not store.reserve_again(buffer, 3)
    assert store.reserve_again(buffer, 1) and store.held == 1
    store.reach(256)
    assert not store.reserve_again(buffer, 256) and store.held == 256
    store.branch()
    assert not store.reserve_again(buffer, 1) and store.held == 256
