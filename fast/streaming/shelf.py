"""What is held within a budget of bytes. What was used longest ago makes room."""

from collections import OrderedDict
from collections.abc import Collection
from typing import Any

Key = tuple[str, int]  # the path of a layer's experts, and which of them


class Shelf:
    """Values by key, each of so many bytes. Room is taken before a value is there to fill it."""

    def __init__(self, budget: int):
        self.budget = budget
        self.taken = 0  # bytes: of what is held, and of what is still being read
        self.most = 0
        self.held: OrderedDict[Key, tuple[Any, int]] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self.held

    def find(self, key: Key) -> Any:
        """Return a value, which is then the one that was used last. Raises KeyError."""
        self.held.move_to_end(key)
        return self.held[key][0]

    def reserve(self, size: int, keep: Collection[Key] = ()) -> bool:
        """Take room for so many bytes; return whether there was enough.

        What is in `keep` is not dropped. Nothing is if that would not do.
        """
        spare = [key for key in self.held if key not in keep]
        lacking = self.taken + size - self.budget
        if lacking > sum(self.held[key][1] for key in spare):
            return False
        for key in spare:
            if self.taken + size <= self.budget:
                break
            self.taken -= self.held.pop(key)[1]
        self.taken += size
        self.most = max(self.most, self.taken)
        return True

    def release(self, size: int) -> None:
        """Give room back that nothing came to fill."""
        self.taken -= size

    def put(self, key: Key, value: Any, size: int) -> None:
        """Put a value where `reserve` made room for it."""
        self.held[key] = value, size
