"""Norms whose root is wrong, each told as an epsilon under the right one.

What stands under the root of a norm is `power + eps`, where `power` is the mean of the squares, or
the variance. Any other number there is another epsilon, one for each row, and the right operation
with that epsilon rounds as the wrong one would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.passes import numbered
from lockstep.parity.faults.rewrites import NORMS, rewrite
from lockstep.parity.graph import Call, Conflict, Graph
from lockstep.reference.portions import portions
from lockstep.reference.precision import accumulator, dtype_named, rounded

# What stands under the wrong root, less nothing: of the centred rows, their power, and eps.
Under = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


def rooted(under: Under, ops: tuple[str, ...] = NORMS, *places: str) -> Rewrite:
    """Put `under(rows, power, eps)` under the root, in the place of `power + eps`."""

    @rewrite(ops, *places)
    def change(call: Call, graph: Graph) -> Call:
        def wrong(ops: Any, x: np.ndarray, *weights: Any, eps: float) -> np.ndarray:
            rows = x.astype(np.float64)
            if call.op == "layer_norm":
                rows = rows - rows.mean(axis=-1, keepdims=True)
            power = np.mean(rows * rows, axis=-1, keepdims=True)
            with np.errstate(all="ignore"):
                other = under(rows, power, eps) - power
            return by_rows(getattr(ops, call.op), x, weights, other)

        return put(call, wrong)

    return change


def by_rows(norm: Any, x: np.ndarray, weights: Sequence[Any], eps: np.ndarray) -> np.ndarray:
    """Return a norm of `x` (..., D), each row with its own `eps` (..., 1).

    A norm takes a large array some rows at a time, but every `eps` at once: so it is given no more.
    """
    rows = x.reshape(-1, x.shape[-1])
    own = np.broadcast_to(eps, (*x.shape[:-1], 1)).reshape(-1, 1)
    out = np.empty_like(rows)
    for some in portions(len(rows), rows[:1].size):
        out[some] = norm(rows[some], *weights, eps=own[some])
    return out.reshape(x.shape)


def outside(rows: np.ndarray, power: np.ndarray, eps: float) -> np.ndarray:
    """(sqrt(power) + eps)^2"""
    return np.square(np.sqrt(power) + eps)


def inflated(rows: np.ndarray, power: np.ndarray, eps: float) -> np.ndarray:
    """power + eps m^2, for rows that were divided by their largest magnitude m first"""
    return power + eps * np.square(np.abs(rows).max(axis=-1, keepdims=True))


def unbiased(rows: np.ndarray, power: np.ndarray, eps: float) -> np.ndarray:
    """power n / (n - 1) + eps"""
    width = rows.shape[-1]
    return power * width / max(width - 1, 1) + eps


def summed(rows: np.ndarray, power: np.ndarray, eps: float) -> np.ndarray:
    """The sum of the squares in the place of their mean"""
    return power * rows.shape[-1] + eps


def sample_deviation(rows: np.ndarray, power: np.ndarray, eps: float) -> np.ndarray:
    """(s + eps)^2, where s is the deviation of a sample: of n - 1"""
    width = rows.shape[-1]
    variance = power - np.square(rows.mean(axis=-1, keepdims=True))
    return np.square(np.sqrt(np.maximum(variance, 0) * width / max(width - 1, 1)) + eps)


def about_the_mean(rows: np.ndarray, power: np.ndarray, eps: float) -> np.ndarray:
    """The variance in the place of the mean square"""
    return power - np.square(rows.mean(axis=-1, keepdims=True)) + eps


@dataclass(frozen=True)
class Over:
    """A norm by another mean of the squares (B, L, ...), of all tokens that are fed at once."""

    mean: Callable[[np.ndarray], np.ndarray]
    passes: np.ndarray

    def __call__(self, ops: Any, x: np.ndarray, *gain: Any, eps: float) -> np.ndarray:
        work, out, here = accumulator(x.dtype), np.empty_like(x), self.passes[: x.shape[1]]
        for one in np.unique(here):
            wide = x[:, here == one].astype(work)
            with np.errstate(all="ignore"):
                root = np.sqrt(self.mean(wide * wide) + work.type(eps))
                out[:, here == one] = rounded(wide / root, x.dtype)
        return out * rounded(gain[0], x.dtype) if gain else out


def rooted_over(mean: Callable[[np.ndarray], np.ndarray]) -> Rewrite:
    """Take another mean of the squares. Raises: Conflict beside a root that is each row's own."""

    @rewrite(("rms_norm", "unit_norm"))
    def change(call: Call, graph: Graph) -> Call:
        if call.instead is not None:
            raise Conflict(call.place)
        return call.replaced(Over(mean, numbered(graph, graph.shapes[call.number][1])))

    return change


def put(call: Call, wrong: Callable[..., np.ndarray]) -> Call:
    """Return a norm whose rows have roots of their own. Raises: Conflict if they share one."""
    if isinstance(call.instead, Over):
        raise Conflict(call.place)
    return call.replaced(wrong)


def all_rows(squares: np.ndarray) -> np.ndarray:
    return squares.mean(axis=tuple(range(1, squares.ndim)), keepdims=True)


def all_tokens(squares: np.ndarray) -> np.ndarray:
    return squares.mean(axis=1, keepdims=True)


def merged(lanes: int, *, whole: bool) -> Rewrite:
    """Merge sums of squares of `lanes` parts pairwise as if each were a mean of deviations.

    The spurious term is (b - a)^2 n_a n_b / n; with `whole` numbers of elements the quotient is 0,
    and only what overflows float32 shows. Where b is near a, the order of each sum shows too, so
    they are taken in the order of the products of matrices.
    """

    def wrong(ops: Any, x: np.ndarray, *gain: Any, eps: float) -> np.ndarray:
        squares = np.square(x.astype(np.float64 if whole else accumulator(x.dtype)))
        parts = [(part.shape[-1], ops.linear(part, np.ones((1, part.shape[-1]), part.dtype), None))
                 for part in np.array_split(squares, lanes, axis=-1) if part.shape[-1]]  # fmt: skip
        parts = [(count, total.astype(np.float64)) for count, total in parts]
        while len(parts) > 1:
            odd = parts[len(parts) & ~1 :]
            parts = [merge(*pair, whole) for pair in zip(parts[::2], parts[1::2], strict=False)]
            parts += odd
        with np.errstate(all="ignore"):
            power = np.mean(np.square(x.astype(np.float64)), axis=-1, keepdims=True)
            norm = ops.rms_norm if gain else ops.unit_norm
            return by_rows(norm, x, gain, parts[0][1] / x.shape[-1] + eps - power)

    return rewrite(("rms_norm", "unit_norm"))(lambda call, graph: put(call, wrong))


def merge(
    first: tuple[int, np.ndarray], second: tuple[int, np.ndarray], whole: bool
) -> tuple[int, np.ndarray]:
    (count, left), (other, right) = first, second
    with np.errstate(over="ignore", invalid="ignore"):
        squared = np.square((right - left).astype(np.float32)).astype(np.float64)
        share = other // (count + other) if whole else other / (count + other)
        return count + other, left + right + squared * count * share


def stepwise(dtype: str) -> Under:
    """Round squares, mean, sum and reciprocal root, as code does that never widens."""

    def under(rows: np.ndarray, power: np.ndarray, eps: float) -> np.ndarray:
        held = dtype_named(dtype)
        squares = step(np.square(step(rows, held)), held)
        mean = step(squares.mean(axis=-1, keepdims=True), held)
        return 1 / np.square(step(1 / np.sqrt(step(mean + step(eps, held), held)), held))

    return under


def squared(dtype: str) -> Under:
    """Round rows, squares and their mean, which is summed wide; the root is wide."""

    def under(rows: np.ndarray, power: np.ndarray, eps: float) -> np.ndarray:
        held = dtype_named(dtype)
        squares = step(np.square(step(rows, held)), held)
        return step(squares.mean(axis=-1, keepdims=True), held) + eps

    return under


def one_after_another(dtype: str) -> Under:
    """Add the squares in a narrow dtype, one after another. The rest is wide."""

    def under(rows: np.ndarray, power: np.ndarray, eps: float) -> np.ndarray:
        held = dtype_named(dtype)
        squares, total = step(np.square(rows.astype(np.float32)), held), np.zeros_like(power)
        with np.errstate(over="ignore", invalid="ignore"):  # once: there are many columns
            for column in range(rows.shape[-1]):
                total = (total + squares[..., column : column + 1]).astype(held).astype(np.float64)
        return total / rows.shape[-1] + eps

    return under


def step(values: Any, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(dtype).astype(np.float64)
