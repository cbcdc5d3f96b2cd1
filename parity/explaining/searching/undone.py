"""What a value inside of a piece must have been, for the rest of it to end where the port did.

Behind a bottleneck, such as the residual stream between attention and MLP, each token goes its own
way. So the rest can be undone, token by token: Newton's method, with the derivatives measured. What
a norm takes before it is added to the stream is looked for from the stream: a norm all but hides
how large it was, so that many steps lead there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Evaluator, Graph
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable
from lockstep.parity.judging.metrics import rms
from lockstep.parity.noise.exact import FLOAT64

STEPS = 12
LENGTHS = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 0.01])  # of a step: the best is gone, by each token
NUDGE = 1e-6  # of a value's size, by which derivatives are measured
NEAR = 1e-9  # of the port's value, that may be left
LITTLE = 0.1  # or of its noise: slopes that are measured lead no nearer, where it hangs on little
NORMED = ("rms_norm", "unit_norm", "layer_norm")
MANY = 40  # steps from nothing to what a norm took
DRAWN = 4  # other starts
SMALL = 8 << 20  # bytes of all nudged values, of a model that is small enough for them
MOST = 0.75  # of the tokens, for which a value must be found
MOST_BEHIND = 0.5  # of them, behind a norm
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
    near = max(NEAR, LITTLE * trial.relative_noise(piece, None))
    way, stream = partial(continued, trial, piece, beside), behind_a_norm(trial.graph, piece, cut)
    if stream is None:
        found = led_back(value, port, partial(way, cut, piece.target), near)
    elif stream == piece.target:
        found = led_back(value, port, partial(way, cut, stream), near, MANY)
    else:
        found = through_a_norm(way, (cut, stream, piece.target), value, port, near)
    most = MOST if stream is None else MOST_BEHIND
    return found if found is not None and found[1].mean() >= most else None


def behind_a_norm(graph: Graph, piece: Piece, cut: int) -> int | None:
    """Return the sum of the stream and a norm of a cut's value, if that is what follows it."""
    inside = frozenset(piece.calls)

    def follower(number: int) -> int | None:
        followers = [one for one in graph.consumers[number] if one in inside]
        return followers[0] if len(followers) == 1 else None

    one, number = follower(cut), cut
    while one is not None and graph.calls[one].op in NORMED:
        number, one = one, follower(one)
    return one if number != cut and one is not None and graph.calls[one].op == "add" else None


def through_a_norm(
    way: Callable[[int, int, np.ndarray], np.ndarray | None],
    places: tuple[int, int, int],
    value: np.ndarray,
    port: np.ndarray,
    near: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Lead back to the stream behind a norm, and from there through the norm.

    `places` are the cut, the stream and the piece's end. What a norm gives is far from nothing, so
    that not every token arrives: if one does, the others start from elsewhere too.
    """
    cut, stream, end = places
    found, known = value.astype(np.float64), np.zeros(value.shape[1], bool)
    some = starts(value) if (value.shape[-1] + 1) * value.nbytes <= SMALL else [value]
    for start in some:
        there = way(cut, stream, start)
        if there is None:
            break
        back = led_back(there, port, partial(way, stream, end), near, MANY)
        if back is None:
            break
        arrived = back[1]
        goal = np.where(arrived[:, None], back[0], there)  # how large it is must say no stray token
        back = led_back(value, goal, partial(way, cut, stream), near, MANY)
        if back is None:
            break
        new = back[1] & arrived & ~known
        found[:, new], known = back[0][:, new], known | new
        if known.all() or not known.any():
            break
    return found, known


def starts(value: np.ndarray) -> Iterator[np.ndarray]:
    """Yield a value, and some that were drawn."""
    yield value
    for seed in range(DRAWN):
        yield np.random.default_rng(seed).standard_normal(value.shape)


@np.errstate(all="ignore")  # a token may go far away
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
        if ends is None:
            return None
        off = port[0] - ends[0]
        arrived = np.sqrt(np.mean(off**2, axis=-1)) <= near * np.sqrt(np.mean(port**2))
        slopes = np.moveaxis(ends[1:] - ends[0], 0, -1) / little.max(axis=(0, 2))[:, None, None]
        going = np.isfinite(ends).all(axis=(0, 2)) & ~arrived & (np.linalg.slogdet(slopes)[0] != 0)
        if not going.any():
            break
        step = np.linalg.solve(slopes[going], off[going][..., None])[..., 0]
        ways = np.repeat(value, len(LENGTHS), axis=0)
        ways[:, going] += LENGTHS[:, None, None] * step
        ends = continued(ways)
        if ends is None:
            return None
        left = np.nan_to_num(np.square(ends - port).sum(-1), nan=np.inf)  # (lengths, T)
        value = ways[np.argmin(left, axis=0), np.arange(ways.shape[1])][None]
    return value, arrived


def nudges(value: np.ndarray) -> np.ndarray:
    """Return nothing, and a little of each number of each token alone: (N + 1, T, N).

    A token's own size is the measure: one that went far away tells no other anything.
    """
    width, sizes = value.shape[-1], np.sqrt(np.mean(value[0] ** 2, axis=-1))
    little = NUDGE * np.where(sizes > 0, sizes, rms(value) or 1.0)
    return little[:, None] * np.vstack([np.zeros(width), np.eye(width)])[:, None]


def continued(
    trial: Trial, piece: Piece, beside: Rewritten | None, cut: int, end: int, values: np.ndarray
) -> np.ndarray | None:
    """Return what comes of many values (M, T, N) at once, as far as the end of a part."""
    ends = ends_of(trial, piece, cut, values, beside=beside, end=end)
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
    end: int | None = None,
) -> np.ndarray | None:
    """Return what a piece ends with in float64 if many values (M, T, N) stand at a cut in it, or
    what stands at another `end`.

    It is computed for the first `rows` tokens, with what is wrong `beside` in the calls behind the
    cut; None if it cannot be done for many at once.
    """
    end = piece.target if end is None else end
    taken = frozenset().union(*map(trial.graph.sources, piece.calls)) & trial.dumped.keys()
    dumped = {number: spread(trial.dumped[number], len(values)) for number in taken}
    ops, dumped[cut] = trial.centre(None).ops, values
    run = Evaluator(trial.graph, ops, FLOAT64, dumped, trial.read, rows)
    behind = run.before(end)
    calls = {number: call for number, call in (beside or {}).items() if number in behind}
    with if_computable():  # which a router's choice is not, made for one row of a batch
        return run.target(end, calls)
    return None


def spread(value: np.ndarray, many: int) -> np.ndarray:
    return np.broadcast_to(value, (many, *value.shape[1:]))
