"""Batches of unequal prompts: what fills up a row is compared with nothing.

Everything here is filled up on the right. A dump that is filled up on the left is turned row by row
until it is, tokens and keys alike: a token's numbers do not depend on where in a row it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.align import Alignment, Shape
from lockstep.parity.naming.names import CACHED, parted
from lockstep.reference.checkpoint.errors import InputError

BY_HEAD = (".q_rope", ".k_rope", ".scores", ".probs", *CACHED)  # (B, H, L, D), or keys at the end
OVER_KEYS = (".scores", ".probs")
FEW = 4  # rows that are listed
OTHER_ROWS = "row {row} is not that of {other}: the token ids differ"


@dataclass(frozen=True)
class Padding:
    """How many tokens of each row are real, in a batch of `longest` tokens.

    Of some tokens of the prompts alone, `whole` are the lengths of these: their keys are all there.
    """

    lengths: tuple[int, ...]
    whole: tuple[int, ...] | None = None

    @property
    def of_keys(self) -> Padding:
        """The padding along keys, and along the slots of a cache."""
        return self if self.whole is None else Padding(self.whole)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @property
    def last(self) -> list[int]:
        """The place of each row's last token."""
        return [length - 1 for length in self.lengths]

    @property
    def rows(self) -> int:
        return len(self.lengths)

    def known(self, count: int, *, step: bool = False) -> np.ndarray:
        """Return which of so many tokens are real, (B, count); all of a step's are."""
        places = np.arange(count)
        mask = places < np.array(self.lengths)[:, None]
        return mask | (places >= self.longest) | step

    def axis(self, name: str, shape: Shape) -> int:
        """Return the axis of tokens, or of slots, in a tensor of a tap, with or without heads.

        There may be as many heads as tokens in the longest row. So a step's tensors, whose tokens
        are others, have their heads first; a cache has them last where only they are too few.
        """
        if len(shape) != 4 or not name.endswith(BY_HEAD):
            return 1
        if name.endswith(CACHED):
            longest = self.of_keys.longest
            return 1 if shape[2] < longest <= shape[1] else 2  # (B, S, G, D)
        step = bool(parted(name)[0])
        return 1 if not step and shape[1] == self.longest != shape[2] else 2  # (B, L, H, D)

    def fits(self, name: str, shape: Shape) -> bool:
        """Say whether a tensor has a row for each prompt, and tokens behind it."""
        step, tap = parted(name)
        if len(shape) < 3 or shape[0] != self.rows:
            return False
        count = shape[self.axis(name, shape)]
        return count == self.longest or bool(step) or tap.endswith(CACHED)

    def mask(self, name: str, shape: Shape) -> np.ndarray:
        """Return which tokens (B, L) of a tensor, or slots of a cache, are real."""
        step, tap = parted(name)
        slots, count = tap.endswith(CACHED), shape[self.axis(name, shape)]
        return self.of_keys.known(count) if slots else self.known(count, step=bool(step))

    def real(self, name: str, x: np.ndarray, row: int | None = None) -> np.ndarray:
        """Return the numbers of real tokens alone, (N, ...), of all rows or of one."""
        tap, mask = parted(name)[1], self.mask(name, x.shape).copy()
        if tap.endswith(OVER_KEYS):
            keys = self.of_keys.known(x.shape[-1])
            x = np.where(keys[:, None, None, :], x, np.zeros((), x.dtype))
        if row is not None:
            mask[np.arange(self.rows) != row] = False
        return np.moveaxis(x, self.axis(name, x.shape), 1)[mask]

    def healed(self, name: str, x: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return a tensor with right numbers where it only fills up: others are made from them."""
        if not self.fits(name, x.shape):
            return x
        axis = self.axis(name, x.shape)
        shape = [self.rows, *[1] * (x.ndim - 1)]
        shape[axis] = x.shape[axis]
        return np.where(self.mask(name, x.shape).reshape(shape), x, right.astype(x.dtype))

    def place(self, name: str, shape: Shape, index: Sequence[int]) -> list[int]:
        """Return where in a tensor a number of `real` is."""
        row, token = np.argwhere(self.mask(name, shape))[index[0]].tolist()
        found = [row, *index[1:]]
        found.insert(self.axis(name, shape), token)
        return [int(one) for one in found]

    def filled(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Return prompts as one array (B, L)."""
        return np.array([[*row, *[0] * (self.longest - len(row))] for row in rows])

    def turned(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return what is filled up on the left as if it were on the right."""
        step, tap = parted(name)
        if not self.fits(name, x.shape):
            return x
        x, axis = x.copy(), self.axis(name, x.shape)
        of_tokens = self.of_keys if tap.endswith(CACHED) else self
        for row, length in enumerate(of_tokens.lengths):
            by = length - of_tokens.longest
            if not step or tap.endswith(CACHED):
                first = np.moveaxis(x[row], axis - 1, 0)[: of_tokens.longest]
                first[...] = np.roll(first, by, axis=0)
            if tap.endswith(OVER_KEYS):
                by, longest = self.of_keys.lengths[row] - self.of_keys.longest, self.of_keys.longest
                keys = x[row][..., :longest]
                keys[...] = np.roll(keys, by, axis=-1)
        return x


@dataclass(frozen=True)
class Turned(Alignment):
    """A side of a comparison whose rows are filled up on the left, read as if on the right."""

    padding: Padding | None = None

    @property
    def rearranges(self) -> bool:
        return self.padding is not None

    def read(self, tap: str, shape: Shape | None = None) -> np.ndarray:
        value = super().read(tap, shape)
        return value if self.padding is None else self.padding.turned(tap, value)


def shared_rows(left: Dump, right: Dump) -> list[list[int]] | None:
    """Return the prompts of a batch, from whichever side says them; None if there is no batch.

    Raises: InputError for an empty row, or where the sides have other ones.
    """
    ours, theirs = left.batch, right.batch
    rows = theirs if ours is None else ours
    if rows is None:
        return None
    for number, row in enumerate(rows):
        if not row:
            raise InputError(right.path, f"row {number} of batch is empty", "__metadata__")
        if theirs is not None and theirs[number : number + 1] != [row]:
            raise InputError(right.path, OTHER_ROWS.format(row=number, other=left.path))
    if theirs is not None and len(theirs) != len(rows):
        raise InputError(right.path, OTHER_ROWS.format(row=len(rows), other=left.path))
    return rows


def on_the_right(side: Alignment, other: Dump, padding: Padding) -> Alignment:
    """Return a side as if filled up on the right; where it says nothing, it is as `other`."""
    said = side.dump if side.dump.batch is not None else other
    if said.padding == "right" or len(set(padding.of_keys.lengths)) == 1:
        return side
    known: dict[str, Any] = vars(side)
    return Turned(**known, padding=padding)


def fed_in_steps(left: Dump, right: Dump) -> list[np.ndarray]:
    """Return what the rows were fed in each step, (B, n), from whichever side says it.

    Raises: InputError if that is of more rows than the batch has, or of fewer.
    """
    rows = right.rows("batch_decoded") or left.rows("batch_decoded") or []
    prompts = shared_rows(left, right) or []
    if rows and len(rows) != len(prompts):
        what = f"batch_decoded has {len(rows)} rows, but batch has {len(prompts)}"
        raise InputError(right.path, what, "__metadata__")
    count = min(map(len, rows), default=0)
    lengths = right.step_lengths or left.step_lengths or [1] * count
    ends = np.cumsum(lengths)
    some = np.array([row[:count] for row in rows], int)
    return [some[:, end - n : end] for n, end in zip(lengths, ends, strict=True) if end <= count]


def rows_named(bad: Sequence[int], count: int) -> str:
    """Name the rows that are wrong, counted from 0, if not all are."""
    if not bad or len(bad) == count or len(bad) > FEW:
        return ""
    return f"in row{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad))}; "
