"""A wrong value between two pieces: a bug that explains one of them alone is not what is wrong.

Two pieces may compute the same value, which the dump lacks: the stream between attention and MLP
goes into a norm, and into the layer's end. Where nothing explains the one, its end tells what that
value was. If that value explains the other piece too, one thing is wrong, and it is in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.deciding.kept import keep_if
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.undone import ends_of
from lockstep.parity.judging.metrics import rms

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece

LEFT = 0.05  # of the error, that the value of another piece may leave of a piece that it explains


def withdraw_one_value(case: Case) -> None:
    """Give up what explains a piece in calls of its own, where an open piece's value does."""
    meant = {
        piece.target: [
            other
            for other in case.open
            if any(explains(value, cut, piece, case) for cut, value in shared(piece, other, case))
        ]
        for piece, _ in case.explained
    }
    keep_if(case, lambda piece, one: not any(apart(one, other) for other in meant[piece.target]))


def apart(one: Explanation, other: Piece) -> bool:
    """Say whether bugs act in no call of another piece."""
    return all(atom.calls.isdisjoint(other.calls) for atom in one.atoms)


def shared(piece: Piece, other: Piece, case: Case) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the values that two pieces compute, as the end of the other one tells what they were.

    It tells that where nothing but sums and a factor lie behind: what it is off by, over the
    factor, the value is off by.
    """
    for cut in sorted(frozenset(piece.calls) & frozenset(other.calls), reverse=True):
        right, port = case.trial.centre(None).target(cut), case.dumped[other.target]
        if right.shape != port.shape:
            continue
        before = end(cut, right, other, case)
        if before is None:
            continue
        step = port - before
        moved = end(cut, right + step, other, case)
        if moved is None:
            continue
        value = right + step / factor(moved - before, step)
        after = end(cut, value, other, case)
        if after is not None and off(after, port) <= LEFT * off(before, port):
            yield cut, value


@np.errstate(all="ignore")  # a broken port may hold anything
def factor(moved: np.ndarray, step: np.ndarray) -> float:
    """Return how much of a step comes through."""
    return float(np.sum(moved * step) / np.sum(np.square(step)))


def explains(value: np.ndarray, cut: int, piece: Piece, case: Case) -> bool:
    port, right = case.dumped[piece.target], case.trial.centre(None).target(piece.target)
    found = end(cut, value, piece, case)
    return found is not None and off(found, port) <= LEFT * off(right, port)


def end(cut: int, value: np.ndarray, piece: Piece, case: Case) -> np.ndarray | None:
    """Return what a piece ends with if this value stands at a cut in it."""
    ends = ends_of(case.trial, piece, cut, value.astype(np.float64))
    return None if ends is None or ends.shape != case.dumped[piece.target].shape else ends


@np.errstate(all="ignore")  # a broken port may hold anything
def off(one: np.ndarray, other: np.ndarray) -> float:
    return rms(one.astype(np.float64) - other)
