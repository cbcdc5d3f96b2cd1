"""Room that grows with what is held: by hand, and by counting what is copied."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.reference.stores.growing import Growing, roomy


def test_room_by_hand():
    """Steps of 256 up to 4,095 tokens, then of the largest 256 * 2^n within an eighth."""
    assert [roomy(stop) for stop in (1, 256, 257, 2049, 4095)] == [256, 256, 512, 2304, 4096]
    assert [roomy(stop) for stop in (4096, 4097, 8191, 8193)] == [4096, 4608, 8192, 9216]
    assert [roomy(stop) for stop in (32768, 32769, 10**6)] == [32768, 36864, 1048576]


def test_less_than_an_eighth_is_empty():
    """By law, for every length of the first hundred thousand that a step may begin or end at."""
    stops = np.array([256 * n + more for n in range(1, 400) for more in (-1, 0, 1)])
    rooms = np.array([roomy(int(stop)) for stop in stops])
    assert (rooms >= stops).all() and (rooms % 256 == 0).all()
    assert (rooms - stops < np.maximum(256, stops / 8)).all()
    assert (np.diff(rooms) >= 0).all()


@pytest.mark.parametrize("prompt", [1, 255, 256, 257, 1024, 4096])
def test_the_token_behind_a_prompt_is_written_in_place(prompt):
    """By law: however long the prompt is, its buffer is still the one that holds them both."""
    store, ops = Growing(np.zeros), SimpleNamespace()  # nothing there that could copy
    store.append(ops, np.ones((1, 1, prompt, 1), np.uint8), 0)
    buffer = store.buffer
    both = store.append(ops, np.full((1, 1, 1, 1), 2, np.uint8), prompt)
    assert store.buffer is buffer
    np.testing.assert_array_equal(both[0, 0, :, 0], [1] * prompt + [2])


@pytest.mark.parametrize("chunk", [100, 512])
def test_what_is_copied_is_linear_in_the_length(chunk):
    """By law: at most 12.5 times what is held; steps of 256 would copy 32 and 64 times as much."""
    store, copied = Growing(np.zeros), []

    def concatenate(past, blank):
        copied.append(past.shape[2])
        return np.concatenate([past, blank], axis=2)

    ops, new = SimpleNamespace(concatenate=concatenate), np.ones((1, 1, chunk, 1), np.uint8)
    for start in range(0, 32 * 1024, chunk):
        store.append(ops, new, start)
        assert sum(copied) <= 12.5 * store.held
    assert len(copied) < 50
