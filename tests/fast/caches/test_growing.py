"""The cache that grows in steps of 256 tokens, on both backends of `fast`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.fast.caches import growing
from lockstep.fast.caches.growing import STEP, GrowingCache
from tests.draws import normal, seeds
from tests.ops_backends import BACKENDS, DTYPES, to_mlx, to_numpy
from tests.tolerances import assert_same_bits

FAST = [backend for backend in BACKENDS if backend.name != "reference"]
ACROSS = [
    [STEP - 1, 1, 1],
    [STEP, 1],
    [STEP + 1, STEP - 1, 1],
    [1, 2 * STEP, 3],
    [3, 3 * STEP],
    [0, 1, 0, STEP],
]
backends = pytest.mark.parametrize("backend", FAST, ids=lambda backend: backend.name)


def empty(backend, layers: int) -> GrowingCache:
    zeros = np.zeros if backend.name == "cpu" else to_mlx_zeros
    return GrowingCache(layers, zeros)


def to_mlx_zeros(shape, dtype):
    import mlx.core as mx

    return mx.zeros(shape, dtype)


def native(backend, array):
    return array if backend.name == "cpu" else to_mlx(array)


def note(cache: GrowingCache, batch: int, new: int) -> None:
    """Note the positions of a step first, as the model does."""
    start = cache.positions.next(batch)
    cache.positions.extend(start[:, None] + np.arange(new))


def step(cache, backend, layer: int, keys, values):
    return cache.update(backend.ops, layer, native(backend, keys), native(backend, values))


def run(backend, cache, steps, keys, values) -> None:
    """Feed the arrays step by step; after each, both layers hold all that came."""
    stop = 0
    for new in steps:
        start, stop = stop, stop + new
        note(cache, len(keys), new)
        for layer, sign in enumerate((1, -1)):
            parts = (sign * part[:, :, start:stop] for part in (keys, values))
            held = [to_numpy(part) for part in step(cache, backend, layer, *parts)]
            assert_same_bits(held[0], sign * keys[:, :, :stop])
            assert_same_bits(held[1], sign * values[:, :, :stop])


@backends
@pytest.mark.parametrize("steps", ACROSS, ids=str)
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_across_the_steps_of_growth(backend, steps, name):
    """By loop: every step gives the slices of one long array, layer by layer."""
    keys, values = (normal(i, 2, 1, sum(steps), 4, dtype=DTYPES[name]) for i in range(2))
    run(backend, empty(backend, 2), steps, keys, values)


@backends
@settings(max_examples=30)
@given(
    seed=seeds, steps=st.lists(st.integers(0, 5), min_size=1, max_size=6), room=st.integers(1, 4)
)
def test_any_steps_and_any_room(backend, seed, steps, room):
    """By loop: the same, with buffers of a few tokens so that every seam is met."""
    keys, values = (normal(seed + i, 1, 2, sum(steps), 3) for i in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "STEP", room)
        run(backend, empty(backend, 2), steps, keys, values)


@backends
def test_most_tokens_are_written_in_place(backend):
    """By hand: room for 256 tokens is made with the first of them, for keys and for values."""
    cache, token = empty(backend, 1), normal(0, 1, 1, 1, 4)
    zeros, made, lengths = cache.zeros, [], []
    cache.zeros = lambda shape, dtype: made.append(shape) or zeros(shape, dtype)
    for _ in range(STEP + 1):
        note(cache, 1, 1)
        step(cache, backend, 0, token, token)
        lengths.append(cache.key_buffers[0].shape[2])
    assert lengths == [STEP] * STEP + [2 * STEP]
    assert made == [(1, 1, STEP, 4)] * 4


@backends
def test_what_was_returned_stays_as_it_was(backend):
    """By law: a later step writes behind what is held, in place and after growth."""
    cache, first = empty(backend, 1), normal(0, 1, 2, 3, 4)
    note(cache, 1, 3)
    held = step(cache, backend, 0, first, 2 * first)
    for new in (1, STEP):
        note(cache, 1, new)
        step(cache, backend, 0, *[normal(1, 1, 2, new, 4)] * 2)
    for part, factor in zip(held, (1, 2), strict=True):
        assert_same_bits(to_numpy(part), factor * first)


@backends
def test_one_cache_has_one_dtype(backend):
    """By law: where the buffer grows, another dtype is refused."""
    cache, x = empty(backend, 1), normal(0, 1, 1, STEP, 4)
    note(cache, 1, STEP)
    step(cache, backend, 0, x, x)
    note(cache, 1, STEP)
    with pytest.raises(ValueError, match=r"but the cache holds .*float32"):
        step(cache, backend, 0, *[x.astype(np.float16)] * 2)
