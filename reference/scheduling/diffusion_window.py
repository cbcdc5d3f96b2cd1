"""The window of tokens that are being made: some are known, the others masks. Whole numbers alone.

The physical order of a window is the one in which its tokens enter the model: those that are known
come first, masks behind them, so that every mask sees all that is known. The logical order is that
of the text, and positions go by it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


class Window:
    """The tokens after the first `start`, whose keys and values are final. None is a mask.

    `room` is how many positions there are; the window ends there, whatever its `size` should be.
    The text is over, and the window empty, when one of `stop` is final, or `left` tokens are.
    """

    def __init__(self, start: int, size: int, *, room: int, left: int, stop: Collection[int]):
        self.start, self.room, self.left, self.stop = start, room, left, stop
        self.slots: list[int | None] = []
        self.refill(size)

    @property
    def leading(self) -> int:
        """How many known tokens stand before the first mask."""
        found = (place for place, token in enumerate(self.slots) if token is None)
        return next(found, len(self.slots))

    @property
    def masks(self) -> list[int]:
        """The slots that are masks."""
        return [slot for slot, token in enumerate(self.slots) if token is None]

    @property
    def order(self) -> list[int]:
        """All slots in physical order."""
        known = [slot for slot, token in enumerate(self.slots) if token is not None]
        return known + self.masks

    def refill(self, count: int) -> None:
        """Append masks, as far as there is room, if the text is not over."""
        room = self.room - self.start - len(self.slots)
        self.slots += [None] * min(count, room if self.left else 0)

    def inputs(self, mask: int) -> tuple[list[int], list[int]]:
        """Return token ids and their positions, in physical order."""
        tokens = [self.slots[slot] for slot in self.order]
        positions = [self.start + slot for slot in self.order]
        return [mask if token is None else token for token in tokens], positions

    def fill(self, slots: Sequence[int], tokens: Sequence[int]) -> None:
        """Make known what some masks are."""
        for slot, token in zip(slots, tokens, strict=True):
            self.slots[slot] = token

    def commit(self, ready: int) -> list[int]:
        """Take the first `ready` tokens out, all known, and return what the text has of them."""
        taken = [token for token in self.slots[:ready] if token is not None][: self.left]
        ends = (count for count, token in enumerate(taken, 1) if token in self.stop)
        final = taken[: next(ends, None)]
        self.start += len(final)
        over = bool(final) and final[-1] in self.stop
        self.left = 0 if over else self.left - len(final)
        self.slots = self.slots[ready:] if self.left else []
        return final


@dataclass(frozen=True)
class Step:
    """What one step did. `tokens` and `positions` are its input in physical order.

    `committed` are the tokens that became final, `filled` the positions that became known, `after`
    the window then, of which None is a mask. `extra` is how many tokens a pass of their own took.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    committed: Sequence[int]
    filled: Sequence[int]
    after: Sequence[int | None]
    extra: int = 0
