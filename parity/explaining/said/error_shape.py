"""What an error that nobody can name looks like: a factor, an offset, late positions ..."""

from __future__ import annotations

from functools import partial

import numpy as np

from lockstep.parity.explaining.said.dropped_out import dropped_out
from lockstep.parity.explaining.said.one_expert import one_expert
from lockstep.parity.explaining.said.one_head import one_head
from lockstep.parity.explaining.said.other_rows import other_rows
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.by_queries import AVERAGE
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.judge import LIMITS

SMALL = 0.05  # of the right value: numbers that changed places are off by more
MOST = 0.9  # of the error that a description must account for
CLOSER = 0.01  # of what one factor leaves: more, and each token has no factor of its own
ATTENDS = ("softmax", AVERAGE)
BESIDES = 0.05  # of the error: what one factor leaves and is still not told
GONE = 1e-3  # of a factor, or what rounding may make of one
FAINT = 1e-3  # of the largest error of a token: what is below counts as right


@np.errstate(all="ignore")
def shape_of_error(trial: Trial, piece: Piece) -> str:
    """Return in words what most of a piece's error is made of."""
    right, port = trial.centre(None).target(piece.target), trial.port(piece.target)
    if np.isnan(port).all():
        return "no number anywhere: NaN in every place"
    if not port.any():
        return NOUGHT
    if not np.isfinite(port).all():
        first = tuple(int(i) for i in np.argwhere(~np.isfinite(port))[0])
        return f"not finite, first at {list(first)}"
    if not np.isfinite(right).all():
        return "finite, where what it is computed from is not"
    axis = trial.graph.token_axes[piece.target][0]
    right = np.moveaxis(right, axis, 0).reshape(right.shape[axis], -1).astype(np.float64)
    port = np.moveaxis(port, axis, 0).reshape(right.shape).astype(np.float64)
    if (unseen := trial.unseen.get(piece.target)) is not None:
        right, port = right[~unseen.all(axis=0)], port[~unseen.all(axis=0)]
    size = max(np.abs(right).max(initial=0), np.abs(port).max(initial=0))
    right, port = right / size, port / size  # whose squares are numbers, however large they are
    error = port - right
    rows, fallen = (partial(one, trial, piece) for one in (other_rows_of, dropped_out_of))
    of_expert, of_head = (partial(one, trial, piece) for one in (of_one_expert, of_one_head))
    attends = any(trial.graph.calls[one].op in ATTENDS for one in piece.calls)
    late = partial(positions, still=row_limit(trial, piece), attends=attends)
    parts, whole = (of_expert, of_head), (offset, order, rows, late, features)
    scaled = partial(gain, still=row_limit(trial, piece), heads=heads_in(trial, piece))
    kinds = (fallen, *parts, scaled, *whole) if error.any() else ()
    for describe in kinds:
        said = describe(right, port, error)
        if said:
            return said
    return "no simple shape: no constant factor, offset, order, position or feature accounts for it"


NOUGHT = "nought everywhere"
BY_FEATURE = "gain: each feature by a factor of its own, the same for all tokens"
BEYOND = "beyond a length: the first {count} tokens are right, those after are not"
BUT_FIRST = "position-dependent: the first token{sees} is right, no other is"
SEES_ITSELF = ", which sees itself alone,"


def other_rows_of(trial: Trial, piece: Piece, *_: np.ndarray) -> str | None:
    return other_rows(trial, piece)


def dropped_out_of(trial: Trial, piece: Piece, *_: np.ndarray) -> str | None:
    return dropped_out(trial, piece)


def of_one_expert(trial: Trial, piece: Piece, *errors: np.ndarray) -> str | None:
    return one_expert(trial, piece, wrong_tokens(errors[-1]))


def of_one_head(trial: Trial, piece: Piece, *errors: np.ndarray) -> str | None:
    still = row_limit(trial, piece) * float(np.linalg.norm(errors[0]))
    return one_head(trial, piece, errors[-1], still)


def wrong_tokens(error: np.ndarray) -> np.ndarray:
    """Say of each token whether it is off by more than a trace of the worst one."""
    power = np.sum(error**2, axis=1)
    return power > FAINT**2 * power.max()


def heads_in(trial: Trial, piece: Piece) -> int:
    """Return in how many parts the numbers of a token lie, those of one head in each."""
    shape, axis = trial.graph.shapes[piece.target], trial.graph.token_axes[piece.target][0]
    return shape[0] * shape[3 - axis] if len(shape) == 4 and axis in (1, 2) else 1


def share(left: np.ndarray, error: np.ndarray) -> float:
    """Return how much of an error's power something takes away."""
    return 1 - np.sum(left**2) / np.sum(error**2)


def gain(
    right: np.ndarray, port: np.ndarray, error: np.ndarray, still: float = 0.0, heads: int = 1
) -> str | None:
    """Say by which factor, or by what kind of factors, the right value was multiplied."""
    factor = factors(right, port, None)
    by_token, by_feature = factors(right, port, 1)[:, None], factors(right, port, 0)
    by_row = np.repeat(of_heads(right, port, heads), right.shape[1] // heads, axis=1)
    single, own, of_row = (unlike(port, one * right) for one in (factor, by_token, by_row))
    is_own = any(
        left < CLOSER * single and np.ptp(several) > SMALL * abs(factor)
        for left, several in ((own, by_token), (of_row, by_row))
    )
    fits = partial(leaves_little, right, port, error)
    if fits(factor) and not is_own:
        return f"gain: {one_factor(right, port, error, float(factor), still)}"
    if len(right) > 3 and fits(by_feature) and not is_own:
        return lost_features(by_feature, max(GONE, still)) or BY_FEATURE
    if heads > 1 and is_own and of_row < CLOSER * own and fits(by_row):
        return f"gain: each token by a factor of its own in each head, {ends(by_row)}"
    return f"gain: each token by a factor of its own, {ends(by_token)}" if fits(by_token) else None


def factors(right: np.ndarray, port: np.ndarray, axis: int | None) -> np.ndarray:
    """Return what brings right values nearest to a port's, for what is left without an axis."""
    return np.sum(right * port, axis=axis) / np.sum(right * right, axis=axis)


def of_heads(right: np.ndarray, port: np.ndarray, heads: int) -> np.ndarray:
    """Return a factor for each token and head; heads lie one behind the other."""
    right_rows, rows = (one.reshape(-1, right.shape[1] // heads) for one in (right, port))
    return factors(right_rows, rows, 1).reshape(len(right), heads)


def unlike(port: np.ndarray, other: np.ndarray) -> float:
    return float(np.sum((port - other) ** 2))


def leaves_little(
    right: np.ndarray, port: np.ndarray, error: np.ndarray, factor: np.ndarray
) -> bool:
    """Say whether a factor leaves little of the error, and is no way to write a small port."""
    left = port - factor * right
    return bool(share(left, error) > MOST and share(left, port) > MOST)


def one_factor(
    right: np.ndarray, port: np.ndarray, error: np.ndarray, factor: float, still: float
) -> str:
    """Say which, and how much of the port it leaves, if that is not next to nothing."""
    left, off = (
        np.sqrt(np.sum(one**2) / np.sum(port**2)) for one in (port - factor * right, error)
    )
    if left <= max(still, BESIDES * min(off, 1)):
        return f"{factor:.6g} times the right value"
    digits = next((n for n in range(2, 9) if f"{factor:.{n}g}" != "1"), 9)
    said = f"about {factor:.{digits}g} times the right value"
    return f"{said}, and {100 * left:.2g}% of its size besides"


def ends(several: np.ndarray) -> str:
    """Say from where to where factors go, with the digits that tell these apart."""
    low, high = float(several.min()), float(several.max())
    digits = next((n for n in range(3, 10) if f"{low:.{n}g}" != f"{high:.{n}g}"), 9)
    return f"from {low:.{digits}g} to {high:.{digits}g}"


def lost_features(factors: np.ndarray, little: float) -> str | None:
    """Say which features are nought, if all others are right."""
    lost = np.abs(factors) < little
    if not lost.any() or np.abs(factors[~lost] - 1).max(initial=0) > little:
        return None
    places = listed(np.flatnonzero(lost).tolist())
    return f"nought in {int(lost.sum())} of {len(factors)} features, all others right: {places}"


def offset(right: np.ndarray, port: np.ndarray, error: np.ndarray) -> str | None:
    if len(right) > 3 and share(error - error.mean(axis=0), error) > MOST:
        return "offset: the same vector is added to every token"
    return None


def order(right: np.ndarray, port: np.ndarray, error: np.ndarray) -> str | None:
    if np.sum(error**2) < SMALL**2 * np.sum(right**2):
        return None  # numbers that moved by a little have nearly the same order
    if np.allclose(
        np.sort(right, axis=1), np.sort(port, axis=1), rtol=1e-2, atol=1e-3 * np.abs(right).max()
    ):
        return "permutation: the right values of each token, in another order"
    return None


def row_limit(trial: Trial, piece: Piece) -> float:
    """Return the share of its size that rounding may move a row by."""
    return LIMITS[trial.dtype.name].row * trial.relative_noise(piece, None)


def positions(
    right: np.ndarray,
    port: np.ndarray,
    error: np.ndarray,
    still: float = 0.0,
    *,
    attends: bool = True,
) -> str | None:
    """Say which tokens are wrong; those that are off by no more than rounding are `still` right.

    Where a piece `attends`, the first token is another case than all others.
    """
    power = np.sum(error**2, axis=1)
    loud = wrong_tokens(error) & ~(power <= still**2 * np.sum(right**2, axis=1))
    if len(power) < 4 or not loud.any():
        return None
    wrong = np.flatnonzero(loud)
    first, after = int(wrong[0]), len(power) - int(wrong[0])
    if first > 0 and len(wrong) == after:
        alone = BUT_FIRST.format(sees=SEES_ITSELF if attends else "")
        return BEYOND.format(count=first) if first > 1 else alone
    if len(wrong) <= max(len(power) // 8, 1):
        return f"confined to {len(wrong)} of {len(power)} tokens: {listed(wrong.tolist())}"
    if first > 0:
        return f"from token {first} on: {len(wrong)} of {after} are wrong"
    late = np.sum(power[len(power) // 2 :]) / np.sum(power)
    return "grows with the position" if late > MOST else None


def features(right: np.ndarray, port: np.ndarray, error: np.ndarray) -> str | None:
    power = np.sum(error**2, axis=0)
    largest = np.sort(power)[::-1]
    count = int(np.searchsorted(np.cumsum(largest) / power.sum(), MOST)) + 1
    if count <= max(len(power) // 8, 1):
        places = sorted(np.argsort(power)[::-1][:count].tolist())
        return f"confined to {count} of {len(power)} features: {listed(places)}"
    return None


def listed(places: list[int]) -> str:
    return ", ".join(map(str, places[:6])) + (" ..." if len(places) > 6 else "")
