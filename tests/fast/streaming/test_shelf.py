"""The shelf by hand, and by a plain list that does what the words say."""

import numpy as np
import pytest

from lockstep.fast.streaming.shelf import Shelf


def filled(budget, *sizes):
    shelf = Shelf(budget)
    for place, size in enumerate(sizes):
        assert shelf.reserve(size)
        shelf.put(("layer", place), f"value {place}", size)
    return shelf


def held(shelf):
    return [place for _, place in shelf.held]


def test_what_was_used_longest_ago_makes_room():
    shelf = filled(10, 4, 3, 3)
    assert shelf.find(("layer", 0)) == "value 0"
    assert shelf.reserve(5)
    assert held(shelf) == [0] and shelf.taken == 4 + 5


def test_no_more_makes_room_than_must():
    shelf = filled(10, 4, 3, 3)
    assert shelf.reserve(1)
    assert held(shelf) == [1, 2]


def test_what_is_kept_stays_and_nothing_goes_in_vain():
    shelf = filled(10, 4, 3, 3)
    assert not shelf.reserve(5, keep=[("layer", 0), ("layer", 1)])
    assert held(shelf) == [0, 1, 2] and shelf.taken == 10
    assert shelf.reserve(3, keep=[("layer", 0), ("layer", 1)])
    assert held(shelf) == [0, 1]


def test_room_that_nothing_fills_is_given_back():
    shelf = filled(10, 4)
    assert shelf.reserve(6)
    shelf.release(6)
    assert shelf.taken == 4 and shelf.most == 10


def test_what_is_not_there_is_not_found():
    with pytest.raises(KeyError):
        filled(10, 4).find(("layer", 1))


def test_it_does_as_a_plain_list_does():
    """500 steps with random sizes; the list is searched from its oldest end each time."""
    rng, shelf, plain = np.random.default_rng(7), Shelf(50), []
    for step in range(500):
        key, size = ("layer", int(rng.integers(12))), 1 + step % 9
        found = [one for one in plain if one[0] == key]
        assert (key in shelf) == bool(found)
        if found:
            shelf.find(key)
            plain.remove(found[0])
            plain.append(found[0])
            continue
        while sum(one[1] for one in plain) + size > 50:
            plain.pop(0)
        plain.append((key, size))
        assert shelf.reserve(size)
        shelf.put(key, None, size)
        assert list(shelf.held) == [one[0] for one in plain]
    assert shelf.most <= 50
