"""What a value inside of a piece must have been, for the rest of it to end where the port did.

Behind a bottleneck, such as the residual stream between attention and MLP, each token goes its own
way. So the rest can be undone, token by token: Newton's method, with the derivatives measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from lockstep.parity.explaining.searching.trial import Rewritten, Trial
from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.graph import Piece
from lockstep.parity.noise.exact import FLOAT64

STEPS = 12
LENGTHS = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 0.01])  # of a step: the best is gone, by each token
NUDGE = 1e-6  # of a value's size, by which derivatives are measured
NEAR = 1e-9  # of the port's value, that may be left
MOST = 0.75  # of the tokens, for which a value must be found
BYTES = 96 << 20  # of all nudged values: a model of real size has more


@np.errstate(all="ignore")  # a broken port may hold anything
def undone(
    trial: Trial, piece: Piece, cut: int, value: np.ndarray, beside: Rewritten | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a value (1, T, N) of a piece that leads to what the port has behind it, and for which
    tokens (T,) it does; `beside` are calls that are wrong in any case.

    Several values may: it is that found first from a given one, which should be near. None if there
    is one for few tokens, or the model is too large for it.
    """
    port = trial.port(piece.target).astype(np.float64)
    if value.ndim != 3 or len(value) != 1 or value.shape != port.shape:
        return None
    if (value.shape[-1] + 1) * value.nbytes > BYTES or not np.isfinite(port).all():
        return None
    found = led_back(value, port, partial(continued, trial, piece, cut, beside))
    return found if found is not None and found[1].mean() >= MOST else None


def led_back(
    value: np.ndarray,
    port: np.ndarray,
    continued: Callable[[np.ndarray], np.ndarray | None],
    near: float = NEAR,
    steps: int = STEPS,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Go step by step from a value (1, T, N) to one that leads to the port's, of that shape too;
    say which tokens (T,) arrived.

    `continued` says what comes of many values (M, T, N), `near` what may be left of the port's
    after so many `steps`.
    """
    for _ in range(steps):
        little = nudges(value)
        ends = continued(value + little)
        if ends is None or not np.isfinite(ends).all():
            return None
        off = port[0] - ends[0]
        arrived = np.sqrt(np.mean(off**2, axis=-1)) <= near * np.sqrt(np.mean(port**2))
        if arrived.all():
            break
        slopes = np.moveaxis(ends[1:] - ends[0], 0, -1) / little.max()  # (T, N, N)
        try:
            step = np.linalg.solve(slopes, off[..., None])[..., 0]
        except np.linalg.LinAlgError:
            return None
        ways = value + LENGTHS[:, None, None] * step
        ends = continued(ways)
        if ends is None:
            return None
        left = np.nan_to_num(np.square(ends - port).sum(-1), nan=np.inf)  # (lengths, T)
        value = ways[np.argmin(left, axis=0), np.arange(ways.shape[1])][None]
    return value, arrived


def nudges(value: np.ndarray) -> np.ndarray:
    """Return nothing, and a little of each number alone: (N + 1, 1, N)."""
    width = value.shape[-1]
    little = NUDGE * (float(np.sqrt(np.mean(value**2))) or 1.0)
    return little * np.vstack([np.zeros(width), np.eye(width)])[:, None]


def continued(
    trial: Trial, piece: Piece, cut: int, beside: Rewritten | None, values: np.ndarray
) -> np.ndarray | None:
    """Return what the rest of a piece makes of many values (M, T, N) at once."""
    ends = ends_of(trial, piece, cut, values, beside=beside)
    if ends is None or len(ends) != len(values):
        return None
    return ends if prod(ends.shape) == values.size else None


def ends_of(
    trial: Trial,
    piece: Piece,
    cut: int,
    values: np.ndarray,
    rows: int | None = None,
    *,
    beside: Rewritten | None = None,
) -> np.ndarray | None:
    """Return what a piece ends with in float64 if many values (M, T, N) stand at a cut in it.

    It is computed for the first `rows` tokens, with what is wrong `beside` in the calls behind the
    cut; None if it cannot be done for many at once.
    """
    taken = frozenset().union(*map(trial.graph.sources, piece.calls)) & trial.dumped.keys()
    dumped = {number: spread(trial.dumped[number], len(values)) for number in taken}
    ops, dumped[cut] = trial.centre(None).ops, values
    run = Evaluator(trial.graph, ops, FLOAT64, dumped, trial.read, rows)
    behind = run.before(piece.target)
    calls = {number: call for number, call in (beside or {}).items() if number in behind}
    try:
        return run.target(piece.target, calls)
    except ValueError:  # such as a router's choice, made for one row of a batch
        return None


def spread(value: np.ndarray, many: int) -> np.ndarray:
    return np.broadcast_to(value, (many, *value.shape[1:]))
