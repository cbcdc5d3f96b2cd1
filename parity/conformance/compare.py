"""Is an answer right? By the calibrated noise of `check`, to the bit where nothing rounds."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep.parity.conformance.case import Case, SeenKeys, call
from lockstep.parity.conformance.nearby import nearby_inputs, rounded_again
from lockstep.parity.conformance.orders import one_after_another
from lockstep.parity.judging.judge import LIMITS, Judgement, judge
from lockstep.parity.noise import ways
from lockstep.parity.noise.exact import FLOAT64, exact
from lockstep.reference import ops
from lockstep.reference.precision import NAMES

# What only moves numbers, or rounds one sum: there is one right answer.
TO_THE_BIT = frozenset(
    {"add", "multiply", "split_heads", "merge_heads", "heads_first", "take_rows", "concatenate",
     "column_block", "causal_mask"}
)  # fmt: skip
FREQUENCIES = "rope_frequencies"


@dataclass(frozen=True)
class Compared:
    """`share` is the worst error as a share of what is allowed, `ratio` that over the noise."""

    passed: bool
    ratio: float
    share: float
    place: str | None = None


@np.errstate(all="ignore")
def compare(case: Case, answer: np.ndarray) -> Compared:
    """Hold an answer against the reference. The last axis of a float result is a row."""
    right = call(ops, case.op, for_reference(case.values))
    if answer.shape != right.shape:
        return wrong(f"shape {list(answer.shape)}, but should be {list(right.shape)}")
    if answer.dtype.name not in (("bool",) if right.dtype.kind == "b" else NAMES):
        return wrong(f"dtype {answer.dtype.name}, but should be {right.dtype.name}")
    if not right.size:
        return Compared(True, 0.0, 0.0)
    if case.op in TO_THE_BIT:
        return same_numbers(answer, right)
    if case.op.startswith(FREQUENCIES):
        return relative(answer, right)
    return within_noise(case, answer, right)


def wrong(place: str) -> Compared:
    return Compared(False, float("inf"), float("inf"), place)


def for_reference(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.array if isinstance(value, SeenKeys) else value
        for name, value in values.items()
    }


def same_numbers(answer: np.ndarray, right: np.ndarray) -> Compared:
    """Compare numbers that nothing may change; NaN is NaN, and -0 is 0."""
    equal = (answer == right) | ((answer != answer) & (right != right))
    if equal.all():
        return Compared(True, 0.0, 0.0)
    return wrong(both_at(tuple(np.argwhere(~equal)[0]), answer, right))


def both_at(index: tuple[int, ...], answer: np.ndarray, right: np.ndarray) -> str:
    place = [int(i) for i in index]
    found, wanted = (side[tuple(place)] for side in (answer, right))
    if answer.dtype.kind == "b":
        return f"first at {place}: {bool(found)}, but should be {bool(wanted)}"
    return f"first at {place}: {float(found):.9g}, but should be {float(wanted):.9g}"


def relative(answer: np.ndarray, right: np.ndarray) -> Compared:
    """Hold each frequency to its own size: the slowest ones count as much as the first.

    A power in float32 has the rounding of its exponent, which the logarithm of theta multiplies:
    up to 16 units in the last place.
    """
    quotient = np.where(answer == right, 1.0, answer.astype(np.float64) / right)
    off = np.abs(quotient - 1) / (16 * 2.0**-23)
    worst = float(np.max(off))
    passed = bool((off <= 1).all())
    bad = tuple(np.argwhere(~(off <= 1))[0]) if not passed else ()
    place = None if passed else both_at(bad, answer, right)
    return Compared(passed, worst, worst, place)


def within_noise(case: Case, answer: np.ndarray, right: np.ndarray) -> Compared:
    """Judge numbers by the noise, and what is not finite by its kind."""
    values, precise = for_reference(case.values), parts(exact(ops, case.dtype), case.op)
    spaces = [*(space for space, _ in ways(case.dtype)), one_after_another(case.dtype)]
    spread = [call(parts(space, case.op), case.op, values) for space in spaces]
    centre = call(precise, case.op, widened(values))
    centre, port = centre.astype(np.float64), answer.astype(np.float64)
    near = [call(precise, case.op, widened(some)) for some in
            nearby_inputs(values, case.op, case.dtype)]  # fmt: skip
    again = rounded_again(right, values, case.op, case.dtype)
    spread = [way.astype(np.float64) for way in (right, *spread, *near, again)]
    kinds = np.array([kind(way) for way in spread])
    agreed = (kinds == kind(port)).any(axis=0)
    if not agreed.all():
        return wrong(both_at(tuple(np.argwhere(~agreed)[0]), answer, right))
    finite = np.isfinite(port) & np.isfinite(centre)
    centre, port, *spread = (np.where(finite, one, 0.0) for one in (centre, port, *spread))
    return shared(judge(port, centre, spread, case.dtype), answer, right, case.dtype)


def kind(x: np.ndarray) -> np.ndarray:
    """Return 0 for numbers, 1 and -1 for the infinities, 2 for NaN."""
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), 0))


def widened(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for float64: the same numbers, and that dtype where one is asked for."""

    def wide(value: Any) -> Any:
        if isinstance(value, np.dtype):
            return FLOAT64
        floats = isinstance(value, np.ndarray) and value.dtype.kind not in "biu"
        return value.astype(np.float64) if floats else value

    return {name: wide(value) for name, value in values.items()}


def parts(space: Any, op: str) -> Any:
    """Return a namespace in which a composite operation rounds as its parts do there."""
    composites = {"swiglu": swiglu, "geglu": geglu, "attention": attention}
    if op not in composites:
        return space
    composed = composites[op]
    return SimpleNamespace(**{op: lambda *inputs, **options: composed(space, *inputs, **options)})


def swiglu(space: Any, gate: Any, up: Any) -> Any:
    return space.multiply(space.silu(gate), up)


def geglu(space: Any, gate: Any, up: Any) -> Any:
    return space.multiply(space.gelu_tanh(gate), up)


def attention(
    space: Any, queries: Any, keys: Any, values: Any, mask: Any, *, scale: float, masked_row: str
) -> Any:
    scores = space.attention_scores(queries, keys, scale=scale)
    probs = space.softmax(scores, mask, masked_row=masked_row)
    return space.attention_context(probs, values, mask)


def shared(found: Judgement, answer: np.ndarray, right: np.ndarray, dtype: np.dtype) -> Compared:
    """Say how much of what is allowed was used, in the measure that used most."""
    limits, rows = LIMITS[dtype.name], int(np.prod(answer.shape[:-1]))
    used = (
        found.ratio / limits.over(rows),
        found.row_ratio / limits.row,
        found.cell_ratio / limits.cell,
    )
    share = max(float("inf") if np.isnan(one) else one for one in used)
    place = None if found.first_bad is None else both_at(found.first_bad, answer, right)
    return Compared(found.passed, found.ratio, share, place)
