"""Moves of tensors whose heads lie in two axes, groups by repeats, or behind everything else."""

from collections.abc import Callable, Mapping

import numpy as np

Shape = tuple[int, ...]
Move = Callable[[np.ndarray, Shape], np.ndarray]


def heads_last(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(B, L, S, H) against (B, H, L, S)."""
    if x.ndim != 4:
        raise ValueError("no batch, two axes of a matrix, and heads")
    return np.moveaxis(x, -1, 1)


def groups_merged(move: Move) -> Move:
    """Return the move of a tensor whose heads are (groups, repeats), as (G, R, L, S) has them.

    The shapes say which two axes these are: no other two give the same shape, but for axes of 1.
    """

    def moved(x: np.ndarray, wanted: Shape) -> np.ndarray:
        if len(wanted) != 4:
            raise ValueError("no axis of heads")
        for axis in range(x.ndim - 2):
            if (found := tried(move, merged(x, axis), wanted)) is not None:
                return found
        raise ValueError("no two axes that may be those of heads")

    return moved


def merged(x: np.ndarray, axis: int) -> np.ndarray:
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def tried(move: Move, x: np.ndarray, wanted: Shape) -> np.ndarray | None:
    try:
        return found if (found := move(x, wanted)).shape == wanted else None
    except ValueError:
        return None


def with_groups(moves: Mapping[str, Move]) -> dict[str, Move]:
    """Return these moves behind the merge of groups and repeats, by what they are called."""
    said = "groups of heads merged"
    return {
        said + f", {name}" * (name != "none"): groups_merged(one) for name, one in moves.items()
    }
