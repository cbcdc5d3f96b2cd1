"""Experts by number, read from the disk when they are visited, or a little before."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from threading import Condition
from time import perf_counter
from typing import Any

from lockstep.fast.streaming.shelf import Key, Shelf
from lockstep.reference.checkpoint.errors import InputError


@dataclass
class Counts:
    """What was asked for and what it took. A hit did not have to be waited for."""

    visits: int = 0
    hits: int = 0
    guesses: int = 0  # experts that were read because the layer before let expect them
    guessed_right: int = 0  # those of them that were visited while they were there, or on their way
    bytes_read: int = 0
    read_s: float = 0.0  # of the thread that reads ahead and of the one that computes
    stalled_s: float = 0.0  # for how long the one that computes had to wait


class ExpertStore:
    """A shelf that a thread fills ahead of the one that computes.

    `read` brings an expert from the disk, where it takes `stored` bytes, and `size` in memory.
    The budget must have room for two. The thread reads what
    `expect` names, in that order, and then what `guess` does, while there is room that neither
    needs. What it has not brought when it is asked for, `get` reads itself.
    """

    def __init__(
        self,
        read: Callable[[Key], Any],
        *,
        size: Callable[[Key], int],
        stored: Callable[[Key], int],
        budget: int,
    ):
        self.read, self.size, self.stored, self.shelf = read, size, stored, Shelf(budget)
        self.counts = Counts()
        self.changed = Condition()
        self.coming: list[Key] = []  # of this layer, in the order in which they are visited
        self.guessed: list[Key] = []  # of the next
        self.reading: set[Key] = set()
        self.unproven: set[Key] = set()  # guessed and read, and not visited so far
        self.given: Key | None = None  # it may still be in use
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="experts")

    def expect(self, path: str, ids: Sequence[int]) -> None:
        """Say which experts of a layer are visited now, in the order in which they will be."""
        with self.changed:
            self.coming = [(path, one) for one in ids]
            self.guessed = [key for key in self.guessed if key[0] != path]
        self.thread.submit(self.read_ahead)

    def guess(self, path: str, ids: Sequence[int]) -> None:
        """Say which experts may be visited after those."""
        with self.changed:
            self.guessed = [(path, one) for one in ids]
        self.thread.submit(self.read_ahead)

    def get(self, key: Key) -> Any:
        """Return an expert, which stays in memory at least until the next one is asked for.

        Raises: InputError if it cannot be read.
        """
        with self.changed:
            if key == self.given and key in self.shelf:
                return self.shelf.find(key)
        began = perf_counter()
        with self.changed:
            self.given = key
            self.coming = [one for one in self.coming if one != key]
            self.count(key)
            here = self.changed.wait_for(lambda: key not in self.reading) and key in self.shelf
            value = self.shelf.find(key) if here else None
            if not here:
                self.claim(key)
        value = value if here else self.bring(key)
        self.counts.stalled_s += perf_counter() - began
        if self.coming or self.guessed:
            self.thread.submit(self.read_ahead)
        return value

    def count(self, key: Key) -> None:
        self.counts.visits += 1
        self.counts.hits += key in self.shelf
        there = key in self.shelf or key in self.reading
        self.counts.guessed_right += key in self.unproven and there
        self.unproven.discard(key)

    def claim(self, key: Key) -> None:
        """Make room for what must be read now, if need be of what was read too early."""
        self.reading.add(key)
        if not self.shelf.reserve(self.size(key), self.coming):
            self.shelf.reserve(self.size(key))

    def read_ahead(self) -> None:
        """Read what comes next, as long as something does and there is room for it."""
        while (key := self.claimed_ahead()) is not None:
            try:
                self.bring(key)
            except (
                InputError,
                OSError,
            ):  # whoever asks for it reads it again, and is told
                return

    def claimed_ahead(self) -> Key | None:
        with self.changed:
            for key in (*self.coming, *self.guessed):
                if key not in self.shelf and key not in self.reading:
                    break
            else:
                return None
            keep = {self.given, *self.coming, *self.guessed}
            if not self.shelf.reserve(self.size(key), keep):
                return None
            self.reading.add(key)
            if key not in self.coming:
                self.counts.guesses += 1
                self.unproven.add(key)
            return key

    def bring(self, key: Key) -> Any:
        """Read an expert into the room that is reserved for it."""
        began, size = perf_counter(), self.size(key)
        try:
            value = self.read(key)
        except BaseException:
            with self.changed:
                self.shelf.release(size)
                self.reading.discard(key)
                self.changed.notify_all()
            raise
        with self.changed:
            self.shelf.put(key, value, size)
            self.reading.discard(key)
            self.counts.bytes_read += self.stored(key)
            self.counts.read_s += perf_counter() - began
            self.changed.notify_all()
        return value

    def report(self) -> dict[str, Any]:
        """Return the counts so far, with the budget and the most bytes that were held at once."""
        with self.changed:
            return {"budget": self.shelf.budget, "held_most": self.shelf.most} | asdict(self.counts)
