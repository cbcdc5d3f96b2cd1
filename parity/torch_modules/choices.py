"""The choices that a torch model makes in a pass: which experts are the k largest of a token.

Two scores that rounding may exchange make two right ports differ by whole experts. So a pass can be
told which to take, row by row, and says what it chose between.
"""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.parity.explaining.routing.flips import NEAR
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.torch_modules.rewriting import spelled

Wanted = Mapping[tuple[int, int], np.ndarray]  # (number of the choice, its row) -> columns (k,)
TOP = "aten.topk.default"


@dataclass(frozen=True)
class Choice:
    """Which columns (R, k) were the largest of the scores (R, X)."""

    scores: np.ndarray
    picked: np.ndarray

    def chosen(self) -> np.ndarray:
        """Return which scores were chosen, (R, X)."""
        mask = np.zeros(self.scores.shape, bool)
        np.put_along_axis(mask, self.picked, True, axis=-1)
        return mask


class Choices:
    """Sees every choice of a run, in order, and makes those that are `wanted`.

    A module that runs again to be given other logits makes the same choices again, and what it
    chose at last is what counts.
    """

    def __init__(self, wanted: Wanted | None = None):
        self.wanted = dict(wanted or {})
        self.made: dict[int, Choice] = {}
        self.count = 0
        self.looking = True

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        made = func(*args, **kwargs)
        if not is_choice(func, args, made):
            return made
        number, self.count = self.count, self.count + 1
        return self.taken(number, args[0], made) if self.looking else made

    @contextmanager
    def again(self) -> Iterator[Callable[[], None]]:
        """Look at no choice while a module runs once more; yield what is to be called before it
        runs a third time, in which its choices have their numbers again."""
        before, self.looking = self.count, False

        def rewind() -> None:
            self.count = before - (after - before)

        try:
            yield rewind
        finally:
            after, self.count, self.looking = self.count, before, True

    def taken(self, number: int, scores: Any, made: Any) -> Any:
        """Return the values and columns of a choice, where some are wanted those."""
        import torch

        values, index = made
        flat = index.reshape(-1, index.shape[-1]).numpy().copy()
        rows = [row for row in range(len(flat)) if (number, row) in self.wanted]
        if rows:
            for row in rows:
                flat[row] = self.wanted[number, row]
            index = torch.from_numpy(flat).reshape(index.shape)
            values = scores.gather(-1, index)
        wide = scores.detach().double().reshape(-1, scores.shape[-1]).numpy()
        self.made[number] = Choice(wide.copy(), flat)
        return values, index


def is_choice(func: Any, args: Any, made: Any) -> bool:
    """Say whether an operation chose some of the columns of floats, not all, in each row."""
    if spelled(func) != TOP:
        return False
    scores, index = args[0], made[1]
    return scores.is_floating_point() and index.shape[-1] < scores.shape[-1]


def as_made(choices: Mapping[int, Choice]) -> dict[tuple[int, int], np.ndarray]:
    """Return the choices of a run as what another is to make."""
    return {
        (number, row): columns
        for number, choice in choices.items() for row, columns in enumerate(choice.picked)
    }  # fmt: skip


@np.errstate(invalid="ignore")  # what is masked out is infinite
def reach(centre: Choice, ways: Iterable[Choice], dtype: str, *, told: bool = False) -> np.ndarray:
    """Return how far apart two scores of each row may be for either to be chosen, (R,).

    So many times what the ways show that rounding does, and a rounding of how far apart the scores
    are, by which some ports choose: what is added to all of them widens nothing. Not that if the
    router's logits are `told`, for they are rounded already.
    """
    allowed = np.zeros(len(centre.scores)) if told else EPSILONS[dtype] * spread(centre.scores)
    for other in ways:
        if other.scores.shape == centre.scores.shape:
            allowed = np.maximum(allowed, NEAR * largest(other.scores - centre.scores))
    return allowed


def spread(scores: np.ndarray) -> np.ndarray:
    """Return how far apart the scores of each row are, (R, X) -> (R,); masked ones are not."""
    seen = np.isfinite(scores) & (scores != 0)
    highest = np.max(scores, axis=-1, initial=-np.inf, where=seen)
    lowest = np.min(scores, axis=-1, initial=np.inf, where=seen)
    return np.where(seen.any(axis=-1), highest - lowest, 0.0)


def largest_of(choice: Choice) -> np.ndarray:
    """Return what the scores alone would choose, sorted, (R, k)."""
    count = choice.picked.shape[-1]
    return np.sort(np.argsort(-choice.scores, axis=-1, kind="stable")[:, :count], axis=-1)


def largest(x: np.ndarray) -> np.ndarray:
    """Return the largest finite size in each row, (R, X) -> (R,)."""
    return np.max(np.where(np.isfinite(x), np.abs(x), 0.0), axis=-1, initial=0.0)
