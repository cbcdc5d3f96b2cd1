"""Some tokens of the prompts of a run, and how a tensor is cut to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.parity.excerpts.places import places_in
from lockstep.parity.judging.padding import BY_HEAD, Padding
from lockstep.parity.naming.names import CACHED, is_tap, parted, tap_named

Shape = tuple[int, ...]
LISTED = 6  # spans of positions that are named


@dataclass(frozen=True)
class Excerpt:
    """Positions of each prompt (of row r: `rows[r]`), and how long the prompts are.

    What is cut has a row for each position, in their order; rows of a batch that have fewer are
    filled up on the right. Steps after the prompt are never cut, nor what a cache holds.
    """

    rows: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """How many tokens the longest prompt has: the axis that is cut."""
        return max(self.lengths)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(map(len, self.rows))

    @property
    def padding(self) -> Padding:
        """Which rows of a tensor that is cut are real; keys are those of the whole prompts."""
        return Padding(self.counts, self.lengths)

    @property
    def is_beginning(self) -> bool:
        """Whether these are the first tokens of each prompt: such tokens see no others."""
        return all(row == tuple(range(len(row))) for row in self.rows)

    @property
    def is_whole(self) -> bool:
        return self.counts == self.lengths

    def row(self, number: int) -> Excerpt:
        """Return that of one prompt, as if it ran alone."""
        return Excerpt((self.rows[number],), (self.lengths[number],))

    def chosen(self, prompts: Sequence[Sequence[int]] | np.ndarray) -> np.ndarray:
        """Return one value of each token at these positions, (B, P), filled up with zeros."""
        some = [
            [prompt[one] for one in row] for prompt, row in zip(prompts, self.rows, strict=True)
        ]
        return self.padding.filled(some)

    @property
    def positions(self) -> np.ndarray:
        """The positions themselves, (B, P); what fills up stands at 0."""
        return self.padding.filled(self.rows)

    def axis(self, name: str, shape: Shape) -> int | None:
        """Return the axis of tokens in a tensor of whole prompts, None if there is none to cut.

        `name` may be another framework's; the axis of the batch may be missing.
        """
        step, tap = parted(tap_named(name))
        if step or tap.endswith(CACHED):
            return None
        first = 1 if len(shape) > 1 and shape[0] == len(self.rows) else 0
        if first == 0 and len(self.rows) > 1:
            return None
        split = len(shape) == first + 3 and (is_tap(tap) or tap.endswith(BY_HEAD))
        own = own_axis(tap, shape) if split else first
        axes = [own, 2 * first + 1 - own] if split else [first]  # a port may swap the two
        return next((axis for axis in axes if axis < len(shape)
                     and shape[axis] == self.longest), None)  # fmt: skip

    def cut(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return the rows of these positions alone, or a tensor without an axis of tokens as it is.

        It is a copy, so that the whole can be let go of.
        """
        axis = self.axis(name, x.shape)
        if axis is None:
            return x
        if axis == 0 or len(self.rows) == 1:
            return np.take(x, self.rows[0], axis=axis)
        some = np.stack(
            [np.take(x[row], at, axis=axis - 1) for row, at in enumerate(self.positions)]
        )
        return np.where(self.real(axis, some.ndim), some, np.zeros((), some.dtype))

    def real(self, axis: int, ndim: int) -> np.ndarray:
        """Return which rows along an axis fill nothing up, to be broadcast."""
        mask = self.padding.known(max(self.counts))
        shape = [len(self.rows), *[1] * (ndim - 1)]
        shape[axis] = max(self.counts)
        return mask.reshape(shape)

    def said(self, *, batch: bool) -> dict[str, Any]:
        """Return what a trace says of it."""
        rows = [list(row) for row in self.rows]
        return {"positions": json.dumps(rows if batch else rows[0])}

    @property
    def which(self) -> str:
        """Say which tokens these are: "8 of 300 tokens: 292..299"; of a batch how many of a row."""
        if len(self.rows) > 1:
            pairs = zip(self.counts, self.lengths, strict=True)
            return ", ".join(f"{some} of {all_}" for some, all_ in pairs) + " tokens of the rows"
        row = self.rows[0] if self.rows else ()
        spans = [shown(row[start], row[stop - 1]) for start, stop in runs(row)]
        more = ", ..." * (len(spans) > LISTED)
        return f"{self.counts[0]} of {self.longest} tokens: {', '.join(spans[:LISTED])}{more}"


def own_axis(name: str, shape: Shape) -> int:
    """Return the axis of tokens that a tap has here, of what is split by heads: (H, L, D) at the
    end of `shape` where heads come first, else (L, H, D)."""
    return len(shape) - 2 if tap_named(name).endswith(BY_HEAD) else len(shape) - 3


def runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Return from where to where in a list of rising numbers each is one more than the last."""
    ends = [n for n in range(1, len(places)) if places[n] != places[n - 1] + 1]
    return list(zip([0, *ends], [*ends, len(places)], strict=True))


def shown(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}..{last}"


def excerpt_of(at: str | None, lengths: Sequence[int]) -> Excerpt | None:
    """Return what `at`, such as "last:8", means of prompts of these lengths; None if it is None.

    Raises: InputError if it names no tokens, or none that a prompt has.
    """
    if at is None:
        return None
    return Excerpt(tuple(map(tuple, places_in(at, lengths))), tuple(lengths))
