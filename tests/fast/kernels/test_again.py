"""Memory that kernels use again: by its law, that nobody who looks at an array sees it change."""

import ml_dtypes
import numpy as np
import pytest

from lockstep.fast import cpu
from lockstep.fast.backends.cpu import CpuBackend
from lockstep.fast.kernels import again
from lockstep.fast.kernels.again import LEAST, LINE, MOST, ROOMS, empty, taken, zeros
from lockstep.reference.stores.growing import Growing

LARGE = (4, LEAST)


@pytest.fixture(autouse=True)
def filled_rooms(monkeypatch):
    """Rooms as they are, not as the other tests have them; none of them idle."""
    monkeypatch.setattr(again, "_idle", {})


def address(array):
    return array.__array_interface__["data"][0]


def idle():
    """Return where arrays in the idle rooms would begin, the one that has lain longest first."""
    return [-(-block.ctypes.data // LINE) * LINE for block in again._idle.values()]


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.uint16, ml_dtypes.bfloat16])
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


def test_a_room_is_lent_to_one_array_at_a_time():
    given_back = empty(LARGE, np.float32)
    place = address(given_back)
    del given_back
    first, second = (empty(LARGE, np.float32) for _ in range(2))
    assert address(first) == place
    assert not np.shares_memory(first, second)


def test_a_room_that_another_thread_took_meanwhile_is_not_lent():
    """By law: that thread took all of them just after this one had seen them."""

    class Taken(dict):
        def copy(self):
            seen = dict(self)
            self.clear()
            return seen

    rooms = [np.empty(LEAST + LINE + more, np.uint8) for more in range(3)]
    again._idle = Taken({id(room): room for room in rooms})
    found = taken(LEAST)
    assert len(found) == LEAST + LINE
    assert not any(found is room for room in rooms)


VIEWS = {
    "rows": lambda array: array[1:2],
    "columns": lambda array: array[:, ::2],
    "some": lambda array: array[3, 5:7],
    "another dtype": lambda array: array.view(np.uint16),
    "of a view": lambda array: array.view(np.uint16)[:, ::2][1:].T,
    "as_strided": lambda array: np.lib.stride_tricks.as_strided(array, (2, 2), (4, 4)),
    "memoryview": lambda array: memoryview(array)[1:],
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_a_view_alone_is_looked_at(make):
    """By law: of whatever dtype, and made by NumPy or Python, until it goes as well."""
    first = zeros(LARGE, np.float32)
    place, view = address(first), make(first)
    del first
    other = empty(LARGE, np.float32)
    assert address(other) != place
    other.fill(9)
    assert not np.asarray(view).any()
    del view
    assert idle() == [place]


@pytest.mark.parametrize(
    ("size", "fits"), [(3, False), (7, False), (8, True), (9, True), (10, False)]
)
def test_rooms_that_are_too_large_or_too_small_stay_idle(size, fits):
    """By hand: with more than an eighth to spare, what is kept would hold much that none uses."""
    other = empty((size * LEAST,), np.uint8)
    place = address(other)
    del other
    assert (address(empty((8 * LEAST,), np.uint8)) == place) == fits


def test_idle_memory_is_bounded(monkeypatch):
    """By hand: of three rooms the two that came back last are kept."""
    monkeypatch.setattr(again, "MOST", 2 * LEAST + 4 * LINE)
    rooms = [empty((LEAST,), np.uint8) for _ in range(3)]
    places = [address(room) for room in rooms]
    while rooms:
        del rooms[0]
    assert idle() == places[1:]


def test_the_number_of_idle_rooms_is_bounded(monkeypatch):
    """By hand: whoever asks looks at all of them."""
    monkeypatch.setattr(again, "LEAST", 1)
    rooms = [empty((100,), np.uint8) for _ in range(ROOMS + 5)]
    places = [address(room) for room in rooms]
    while rooms:
        del rooms[0]
    assert idle() == places[5:]


def test_an_array_that_is_too_large_alone_leaves_the_others_idle():
    small = empty((LEAST,), np.uint8)
    place = address(small)
    del small
    empty((MOST + 1,), np.uint8)
    assert idle() == [place]


def test_a_cache_leaves_its_memory_to_the_next():
    """By hand: what the next one has not written there is 0."""
    make, new = CpuBackend("float32").zeros, np.ones((1, 4, 200, 128), np.float32)
    places = []
    for _ in range(2):
        store = Growing(make)
        store.append(cpu, new, 0)
        (buffer,) = store.arrays()
        assert (buffer[:, :, :200] == 1).all() and not buffer[:, :, 200:].any()
        places.append(address(buffer))
        del store, buffer
        assert idle() == places[-1:]
    assert places[0] == places[1]


def test_room_that_nobody_writes_to_takes_no_memory(monkeypatch):
    """By hand: a cache may be made for many more tokens than come."""
    made = []
    monkeypatch.setattr(np, "zeros", lambda *given: made.append(given) or np.ones(*given))
    assert zeros(LARGE, np.uint8).all() and len(made) == 1
