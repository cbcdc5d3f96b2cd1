"""Which tokens of a text a bug is seen at, in the words of whoever decodes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.judge import LIMITS

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

FEW = 4  # steps that are listed


def whereabouts(pieces: Iterable[Piece], case: Case) -> str:
    """Say which tokens of some pieces are wrong; nothing if all are, or no rule is plain."""
    wrong = [wrong_tokens(piece, case) for piece in pieces]
    if len({one.shape for one in wrong}) != 1:
        return ""
    every = np.any(wrong, axis=0)
    pads = case.graph.pads
    known = np.ones_like(every) if pads is None else ~pads
    bad = [row for row in range(len(every)) if every[row].any()]
    words = {in_words(every[row], case.graph.steps, known[row]) for row in bad}
    found = words.pop() if len(words) == 1 else ""
    return " ".join(filter(None, (of_rows(bad, len(every)), found)))


def of_rows(bad: Sequence[int], count: int) -> str:
    """Name the rows of a batch, counted from 0, if not all are wrong."""
    if not bad or len(bad) == count or len(bad) > FEW:
        return ""
    return f"in row{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad))}"


@np.errstate(all="ignore")  # a broken port may hold anything
def wrong_tokens(piece: Piece, case: Case) -> np.ndarray:
    """Return the tokens (B, T) of a piece that are farther off than a row may be.

    A token that was not computed, or only fills up, is none of them; but where all others of a row
    are, it is.
    """
    trial, target = case.trial, piece.target
    values = trial.centre(None).target(target), trial.port(target)
    axis = case.graph.token_axes[target][0]
    right, port = (np.moveaxis(one, axis, 1).astype(np.float64) for one in values)
    off, size = (
        np.linalg.norm(one.reshape(*one.shape[:2], -1), axis=-1) for one in (port - right, right)
    )
    wrong = ~(off <= LIMITS[trial.dtype.name].row * trial.relative_noise(piece, None) * size)
    unseen = np.broadcast_to(trial.unseen.get(target, False), wrong.shape)
    whole = (wrong | unseen).all(axis=1, keepdims=True)
    return np.where(unseen, whole, wrong)


def in_words(wrong: np.ndarray, steps: Sequence[int], known: np.ndarray | None = None) -> str:
    """Say which of the tokens (T,) are wrong: those of steps, or those from a position on.

    `known` says which of them are tokens of the text.
    """
    if not wrong.any() or wrong.all():
        return ""
    known = np.ones_like(wrong) if known is None else known
    prompt = steps[0] if steps else len(wrong)
    if not wrong[:prompt].any():
        edges = [*steps, len(wrong)]
        return of_steps([bool(wrong[begin:end].any()) for begin, end in pairwise(edges)])
    if not wrong[prompt:].any() and steps:
        return "in the prompt alone"
    wrong = wrong[known]
    first = int(np.argmax(wrong))
    beyond = wrong[first:]
    return f"from position {first} on" if first > 1 and beyond.mean() > 0.9 else ""


def of_steps(wrong: Sequence[bool]) -> str:
    """Name the steps that are wrong, where no token of the prompt is."""
    first = wrong.index(True) + 1
    if all(wrong[first - 1 :]):
        return f"from step {first} on" if len(wrong) > first or first == 1 else f"in step {first}"
    numbers = [str(number) for number, one in enumerate(wrong, 1) if one]
    if len(numbers) > FEW:
        return f"in {len(numbers)} steps from step {first} on"
    return f"in step{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def place_of(index: Sequence[int], axis: int, steps: Sequence[int]) -> str:
    """Say where a number is: as it lies in the dump of its own pass."""
    step = int(np.searchsorted(steps, index[axis], side="right"))
    if not step:
        return f"first at {list(index)}"
    there = [n - steps[step - 1] if at == axis else n for at, n in enumerate(index)]
    return f"first in step {step}, at {there}"
