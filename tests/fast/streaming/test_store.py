"""What the thread reads, and when: by hand, with a disk that waits until it is told to go on."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep

import pytest

from lockstep.fast.streaming.store import ExpertStore

SIZE = 10


class Disk:
    """Reads are listed; those named in `slow` wait for `go`, those in `bad` fail."""

    def __init__(self, slow=(), bad=()):
        self.read, self.begun, self.go = [], Event(), Event()
        self.slow, self.bad = set(slow), set(bad)

    def __call__(self, key):
        self.read.append(key)
        if key in self.slow:
            self.begun.set()
            assert self.go.wait(20)
        if key in self.bad:
            raise OSError(f"{key} cannot be read")
        return f"expert {key[1]} of {key[0]}"


def store_of(disk, room):
    return ExpertStore(disk, size=lambda key: SIZE, stored=lambda key: 7, budget=room * SIZE)


def settle(store):
    """Wait until the thread has nothing left to do."""
    store.thread.submit(lambda: None).result(20)


def asked_meanwhile(store, disk, key):
    """Return what is got of an expert whose reading goes on only once it has been asked for."""
    with ThreadPoolExecutor(1) as other:
        found = other.submit(store.get, key)
        while store.given != key:
            sleep(0.001)
        disk.go.set()
        return found.result(20)


def test_what_was_read_is_not_read_again():
    disk = Disk()
    store = store_of(disk, 4)
    assert [store.get(("a", one)) for one in (1, 2, 1)] == [
        "expert 1 of a", "expert 2 of a", "expert 1 of a",
    ]  # fmt: skip
    assert disk.read == [("a", 1), ("a", 2)]
    assert store.report()["visits"] == 3 and store.report()["hits"] == 1


def test_the_matrices_of_one_expert_are_one_visit():
    store = store_of(Disk(), 4)
    assert {store.get(("a", 1)) for _ in range(3)} == {"expert 1 of a"}
    assert store.report()["visits"] == 1


def test_it_reads_what_comes_next_before_it_is_asked_for():
    disk = Disk()
    store = store_of(disk, 8)
    store.expect("a", [3, 5, 6])
    settle(store)
    assert disk.read == [("a", 3), ("a", 5), ("a", 6)]
    assert [store.get(("a", one))[7] for one in (3, 5, 6)] == ["3", "5", "6"]
    counts = store.report()
    assert (counts["visits"], counts["hits"], counts["bytes_read"]) == (3, 3, 21)


def test_a_guess_comes_after_what_is_sure():
    disk = Disk(slow=[("b", 1)])
    store = store_of(disk, 8)
    store.guess("b", [1, 2])
    assert disk.begun.wait(20)
    store.expect("a", [3])
    disk.go.set()
    settle(store)
    assert disk.read == [("b", 1), ("a", 3), ("b", 2)]


def test_a_guess_that_was_right_is_counted_and_one_that_was_wrong_too():
    store = store_of(Disk(), 8)
    store.guess("b", [1, 2])
    settle(store)
    store.expect("b", [2, 4])
    assert store.get(("b", 2)) and store.get(("b", 4))
    counts = store.report()
    assert (counts["guesses"], counts["guessed_right"]) == (2, 1)


def test_a_guess_takes_no_room_from_what_is_sure():
    disk = Disk()
    store = store_of(disk, 3)
    store.expect("a", [1, 2, 3])
    store.guess("b", [1, 2])
    settle(store)
    assert disk.read == [("a", 1), ("a", 2), ("a", 3)]
    assert store.get(("a", 1)) and store.get(("a", 2))
    settle(store)
    assert disk.read[3:] == [("b", 1)], "the first is no longer in use, the second still is"


def test_whoever_asks_waits_for_what_is_being_read():
    disk = Disk(slow=[("a", 1)])
    store = store_of(disk, 4)
    store.expect("a", [1])
    assert disk.begun.wait(20)
    assert asked_meanwhile(store, disk, ("a", 1)) == "expert 1 of a"
    assert disk.read == [("a", 1)], "it is not read twice"
    assert store.report()["stalled_s"] > 0 and store.report()["hits"] == 0


def test_an_error_reaches_the_one_who_asks_and_takes_no_room():
    disk = Disk(bad=[("a", 1)])
    store = store_of(disk, 2)
    store.expect("a", [1, 2])
    settle(store)
    with pytest.raises(OSError, match="cannot be read"):
        store.get(("a", 1))
    assert store.shelf.taken == SIZE * len(store.shelf.held) and ("a", 1) not in store.shelf
    disk.bad.clear()
    assert store.get(("a", 1)) == "expert 1 of a"


def test_the_budget_holds_whatever_is_expected_and_guessed():
    """Ten layers of twelve experts, in turn; never more than five at once, and each is right."""
    store = store_of(Disk(), 5)
    for step in range(200):
        layer, ids = f"layer {step % 10}", [(step + k * k) % 12 for k in range(3)]
        store.expect(layer, sorted(set(ids)))
        store.guess(f"layer {(step + 1) % 10}", sorted({(step + 2 + k) % 12 for k in range(3)}))
        for one in sorted(set(ids)):
            assert store.get((layer, one)) == f"expert {one} of {layer}"
    settle(store)
    assert store.report()["held_most"] == 5 * SIZE
    assert store.shelf.taken == SIZE * len(store.shelf.held) and not store.reading


def test_a_guess_that_is_on_its_way_was_right_too():
    disk = Disk(slow=[("b", 1)])
    store = store_of(disk, 4)
    store.guess("b", [1])
    assert disk.begun.wait(20)
    assert asked_meanwhile(store, disk, ("b", 1)) == "expert 1 of b"
    assert store.report()["guessed_right"] == 1
