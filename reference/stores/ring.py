"""Which tokens the layers of one kind still hold, and in which slots: whole numbers alone."""

from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np

from lockstep.reference.checkpoint.errors import InputError

PADDING = -1  # the position of a token that nobody sees
FORGOTTEN = -2  # in a file: of one that every layer has dropped
Rule = Literal["window", "ring", "columns"]


def none() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Move:
    """What a store does with a step: new tokens go to slot `at`, and `total` slots are in use.

    `past` is how many were in use before. Of them, those of `before` and of `behind` come to stand
    before and behind the new ones; where `before` is None, all stay where they are.
    """

    at: int = 0
    total: int = 0
    past: int = 0
    before: np.ndarray | None = None
    behind: np.ndarray = field(default_factory=none)


@dataclass(frozen=True, eq=False)
class Ring:
    """Tokens at the first `keep` positions, and of the rest those less than `size` back.

    `slots` are the numbers of the tokens held, (S,), in the order of the buffer. A single token
    takes the slot of the one that leaves, unless `in_order`; more than one are put behind those
    left, in the order of the text: so does mlx-lm. `rule` says what queries do not see of it:
    "window", the layer's own mask decides; "ring", each sees what it would see if it had come
    alone; "columns", a single one sees everything, and of several each sees the last size + keep
    columns, whatever stands in them: mlx-lm's mask.
    """

    size: int
    keep: int = 0
    rule: Rule = "window"
    in_order: bool = False
    slots: np.ndarray = field(default_factory=none)
    move: Move = field(default_factory=Move)

    def after(self, held: np.ndarray, new: np.ndarray, numbers: np.ndarray, number: int) -> Self:
        """Return the ring once tokens at positions `new` (B, L) have come after `held` (B, S).

        `numbers` (S,) are those of the tokens held, and `number` that of the first new one.
        Raises: InputError if one of them sees a token that was dropped.
        """
        if self.rule == "columns" and (new < 0).any():
            raise InputError("cache", "rows of unequal length, but mlx-lm's rule is of columns")
        live, count = np.isin(self.slots, self.check(held, new, numbers)), new.shape[1]
        fresh = np.arange(number, number + count)
        stay = int(np.count_nonzero(live))
        if live[:stay].all():  # nothing leaves, or the last ones do
            slots = np.concatenate([self.slots[:stay], fresh])
            return replace(self, slots=slots, move=Move(stay, len(slots), len(live)))
        if count == 1 and stay == len(live) - 1 and not self.in_order:
            at = int(np.flatnonzero(~live)[0])
            slots = self.slots.copy()
            slots[at] = number
            return replace(self, slots=slots, move=Move(at, len(slots), len(live)))
        kept = numbers[(held < self.keep).any(axis=0)]
        return self.gathered(np.flatnonzero(live), kept, fresh)

    def gathered(self, live: np.ndarray, kept: np.ndarray, fresh: np.ndarray) -> Self:
        """Return the ring whose slots were put in the order of the text, with new ones among them.

        A single token goes where a ring goes on: behind the tokens that are always `kept`.
        """
        live = live[np.argsort(self.slots[live])]
        at, past = len(live), len(self.slots)
        if len(fresh) == 1 and not self.in_order:
            at = int(np.count_nonzero(np.isin(self.slots[live], kept)))
        before, behind = live[:at], live[at:]
        slots = np.concatenate([self.slots[before], fresh, self.slots[behind]])
        return replace(self, slots=slots, move=Move(at, len(slots), past, before, behind))

    def holding(self, slots: np.ndarray) -> Self:
        """Return the ring with these tokens in its slots."""
        return replace(self, slots=slots, move=Move(0, len(slots), len(slots)))

    def check(self, held: np.ndarray, new: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers of the held tokens that new ones see. Raises: as `after`."""
        needed = numbers
        if new.shape[1]:
            seen = (held >= 0) & ((held < self.keep) | (lowest_of(new) - held < self.size))
            needed = needed[seen.any(axis=0)]
        else:
            needed = np.intersect1d(needed, self.slots)
        dropped = needed[~np.isin(needed, self.slots)]
        if len(dropped):
            raise needed_again(int(dropped[0]))
        return needed

    def given(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return where the tokens of the slots stand, `keys` (B, S), for each query (B, L).

        That is `keys`; or (B, L, S) if queries differ in sight. What one does not see stands at -1.
        """
        if self.rule == "window" or (self.rule == "columns" and queries.shape[1] == 1):
            return keys
        reach = min(self.size, int(queries.max(initial=0)) + 1)  # farther lies no key, nor an int64
        # Compared, not subtracted: a matrix of whole numbers has eight times the bytes.
        hidden = keys[:, None] <= queries[:, :, None] - reach  # (B, L, S)
        hidden &= (keys >= self.keep)[:, None]
        if self.rule == "columns":
            columns = np.arange(keys.shape[1])
            rows = columns[keys.shape[1] - queries.shape[1] :, None]
            hidden = np.broadcast_to(rows - columns >= self.size + self.keep, hidden.shape)
        return np.where(hidden, PADDING, keys[:, None]) if hidden.any() else keys


def lowest_of(new: np.ndarray) -> np.ndarray:
    """Return the lowest position of each row that is no padding, (B, 1)."""
    return np.where(new < 0, np.iinfo(np.int64).max, new).min(axis=1)[:, None]


def needed_again(number: int) -> InputError:
    what = f"token {number} is needed again, but layers with a window have dropped it"
    return InputError("cache", what)
