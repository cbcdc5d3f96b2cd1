"""Memory that kernels use again: by its law, that nobody who looks at an array sees it change."""

import threading

import numpy as np
import pytest

from lockstep.fast.kernels import again
from lockstep.fast.kernels.again import LEAST, LINE, empty, zeros

LARGE = (4, LEAST)


@pytest.fixture(autouse=True)
def nothing_idle(monkeypatch):
    monkeypatch.setattr(again, "_idle", {})


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(3, 5), (0, 7), LARGE, (2, LEAST + 1)])
def test_an_array_as_numpy_makes_it(shape, dtype):
    """By hand."""
    array = empty(shape, dtype)
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
    assert array.nbytes < LEAST or address(array) % LINE == 0
    array.fill(1)
    del array
    assert not zeros(shape, dtype).any()


def test_what_nobody_looks_at_is_used_again():
    first = empty(LARGE, np.float32)
    place = address(first)
    del first
    assert address(empty(LARGE, np.float32)) == place


@pytest.mark.parametrize("cut", [np.s_[1:2], np.s_[:, ::2], np.s_[3, 5:7]])
def test_a_view_of_a_view_is_looked_at(cut):
    """By law: also one that has another dtype, or that NumPy or Python made of its memory."""
    first = zeros(LARGE, np.float32)
    place, views = address(first), [first.view(np.uint16)[cut].reshape(-1)[:2]]
    views.append(memoryview(first)[1:])
    views.append(np.lib.stride_tricks.as_strided(first, (2, 2), (4, 4)))
    del first
    while views:
        other = empty(LARGE, np.float32)
        assert address(other) != place
        other.fill(9)
        assert not np.asarray(views.pop()).any()
        del other
        again._idle.clear()
    again._idle.clear()


def test_rooms_that_are_far_too_large_or_too_small_stay_idle():
    for size, fits in ((LEAST, False), (4 * LEAST, True), (9 * LEAST, False)):
        again._idle.clear()
        other = empty((size,), np.uint8)
        place = address(other)
        del other
        assert (address(empty((4 * LEAST,), np.uint8)) == place) == fits


def test_idle_memory_is_bounded(monkeypatch):
    """By hand: of three rooms the two that came back last are kept."""
    monkeypatch.setattr(again, "MOST", 2 * LEAST + 4 * LINE)
    rooms = [empty((LEAST,), np.uint8) for _ in range(3)]
    places = [address(room) for room in rooms]
    while rooms:
        del rooms[0]
    assert [-(-block.ctypes.data // LINE) * LINE for block in again._idle.values()] == places[1:]


def test_two_threads_never_have_the_same_room():
    """By law: what a thread wrote is there when it looks."""
    wrong = []

    def work(number):
        for turn in range(300):
            array = empty((LEAST,), np.uint8)
            array[:: LEAST // 8] = number
            if turn % 3:
                array = array[::2]
            if (array[:: LEAST // 8] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
