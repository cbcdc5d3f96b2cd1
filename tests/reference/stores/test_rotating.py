"""A store whose slots are used again: what stands where after any steps. By loop, by hand."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import fast, reference
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores import growing
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.ring import Move, Ring
from lockstep.reference.stores.rotating import Rotating, runs

SIDES = {"numpy": (reference.ops, np.zeros, np.asarray), "mlx": (fast.ops, mx.zeros, mx.array)}


def ring_cache(side: str, size: int, keep: int, in_order: bool = False) -> Cache:
    stores = [(Rotating(size, SIDES[side][1]), Rotating(size, SIDES[side][1]))]
    rings = {"full_attention": Ring(size - keep, keep, "ring", in_order)}
    return Cache(stores, name="rotating", rings=rings)


def fed(cache: Cache, side: str, count: int) -> np.ndarray:
    """Feed tokens that are their own numbers, and return those that are held, in their slots."""
    ops, _, native = SIDES[side]
    numbers = np.arange(count) + cache.positions.length
    new = numbers[None, None, :, None].astype(np.float32)
    cache.positions.extend(numbers[None])
    keys, values = (np.array(one) for one in cache.update(ops, 0, native(new), native(-new)))
    assert (keys == -values).all()
    return keys.ravel().astype(int)


operations = st.lists(
    st.tuples(st.sampled_from(["step", "step", "trim", "branch"]), st.integers(0, 4)), max_size=14
)


@pytest.mark.parametrize("side", SIDES)
@settings(max_examples=80, deadline=None)
@given(
    operations=operations,
    size=st.integers(1, 6),
    keep=st.integers(0, 3),
    in_order=st.booleans(),
    step=st.integers(1, 4),
)
def test_any_steps_trims_and_branches(side, operations, size, keep, in_order, step):
    """By loop: the buffer holds the tokens that the ring says, and all that the next one sees."""
    keep = min(keep, size - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "STEP", step)
        caches = [ring_cache(side, size, keep, in_order)]
        for what, count in operations:
            cache = caches[-1]
            if what == "branch":
                caches.append(cache.branch())
                if count % 2:  # go on with the original, and look at the branch in the end
                    caches[-2:] = caches[:-3:-1]
            elif what == "trim":
                length = cache.positions.length
                try:
                    cache.trim(min(count, length))
                except InputError:
                    assert cache.positions.length == length
            else:
                check(cache, side, count, size, keep)
        for cache in reversed(caches):
            check(cache, side, 1, size, keep)


def check(cache: Cache, side: str, count: int, size: int, keep: int) -> None:
    start = cache.positions.length
    held = fed(cache, side, count)
    assert held.tolist() == cache.positions.rings["full_attention"].slots.tolist()
    assert len({*held.tolist()}) == len(held)
    seen = {one for one in range(start) if one < keep or start - one < size - keep}
    assert seen | {*range(start, start + count)} <= {*held.tolist()}


@pytest.mark.parametrize("side", SIDES)
def test_the_last_step_can_always_be_forgotten(side):
    """By law: a chunk of drafts, or one token, whatever came before."""
    for steps in ([7, 3], [1] * 9, [2, 1, 1, 1, 4], [9, 1]):
        cache = ring_cache(side, 5, 1)
        for count in steps:
            fed(cache, side, count)
        cache.trim(steps[-1])
        held = fed(cache, side, 1).tolist()
        start = sum(steps[:-1])
        assert {0, *range(start - 3, start + 1)} <= {*held}


@pytest.mark.parametrize("side", SIDES)
def test_room_is_made_by_steps_up_to_the_size(side):
    """By hand: 256 slots, then 300, and 300 for ever; a prompt of 400 has them until the next."""
    cache, sizes = ring_cache(side, 300, 4), []
    for _ in range(305):
        fed(cache, side, 1)
        sizes.append(cache.keys[0].arrays()[0].shape[2])
    assert sizes == [256] * 256 + [300] * 49
    cache = ring_cache(side, 300, 4)
    rooms = []
    for count in (400, 1, 2):
        fed(cache, side, count)
        rooms.append(cache.keys[0].arrays()[0].shape[2])
    assert rooms == [400, 300, 301]


def test_a_step_that_was_left_out_is_refused():
    """By hand: tokens that are noted and never stored leave a gap."""
    cache = ring_cache("numpy", 4, 0)
    cache.positions.extend(np.array([[0, 1]]))
    with pytest.raises(ValueError, match="new tokens at 2, but the cache holds 0"):
        fed(cache, "numpy", 1)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 2, 1, 1), (2, 1, 1, 2)], ids=["batch", "heads", "width"]
)
def test_tokens_of_another_shape_are_refused(shape):
    """By hand: NumPy would write one row, or one number, wherever there is room for more."""
    store = Rotating(4, SIDES["numpy"][1])
    store.place(reference.ops, np.ones((2, 1, 2, 1), np.float32), Move(0, 2))
    with pytest.raises(ValueError, match=r"of \(B, G, D\) = .*, but the cache holds \(2, 1, 1\)"):
        store.place(reference.ops, np.zeros(shape, np.float32), Move(0, 2, 2))
    assert (store.state(2)[0] == 1).all()


@pytest.mark.parametrize(
    ("slots", "cut"),
    [([], []), ([3], [(3, 4)]), ([0, 4, 5, 1], [(0, 1), (4, 6), (1, 2)]), ([2, 3], [(2, 4)])],
)
def test_runs_by_hand(slots, cut):
    assert runs(np.array(slots, np.int64)) == cut
