"""Compare two runs of which one, or both, are sketches: where do they part, and what to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockstep.parity.diffing.plain import not_judged, rounding
from lockstep.parity.dumps.dtype import dtype_of
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.names import is_tap
from lockstep.parity.sketches.judging import judged
from lockstep.parity.sketches.sides import Side, Sketched, side_of
from lockstep.parity.sketches.suspects import Reads, suspects_of
from lockstep.reference.checkpoint.errors import InputError

ABOUT = (
    "compared by sketches: own error is not known; differences are estimates, good to about a "
    "fifth, and places are parts of an axis; what is off in a few numbers may be too little to see"
)
EQUAL = "{some} of {all} taps hold the same bits on both sides, by their hashes"
MOVED = "its axes lie otherwise on the other side, and a sketch cannot be moved"
UNLIKE = "is of {ours}, but {other} of {theirs}: a sketch cannot be cut"


def compare_sketches(
    left: Dump,
    right: Dump,
    *,
    reads: Reads | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> Result:
    """Judge `right` by `left`, tap by tap, by the sketches of both; tensors are sketched as read.

    `reads` says what the operation of each tap reads, where a model is at hand; else the suspects
    are all of the first layer that is wrong, as far as it is computed before.
    """
    result = Result(left=str(left.path), right=str(right.path))
    check_alike(left, right)
    sides = side_of(left), side_of(right)
    dtype = told_dtype(left, right)
    result.taps = list(compared(*sides, rounding(dtype), progress))
    same = sum(tap.max_abs == 0 for tap in result.taps)
    result.notes += [ABOUT, EQUAL.format(some=same, all=result.compared)]
    ours, theirs = (side.found.names.keys() for side in sides)
    result.unmatched = sorted(ours ^ theirs)
    result.conventions = [f"left: {line}" for line in sides[0].found.plan]
    result.conventions += [f"right: {line}" for line in sides[1].found.plan]
    result.suspects = suspects_of(result, reads)
    return result


def compared(
    left: Side, right: Side, limit: float, progress: Callable[[str], None]
) -> Iterator[Tap]:
    for name in left.found.names:
        if name not in right.found.names:
            continue
        like = left.shape(name) if isinstance(left.dump, Sketched) else right.shape(name)
        truth, port = left.entry(name, like), right.entry(name, like)
        if truth is None or port is None:
            yield not_judged(name, right.shape(name), MOVED)
        elif not is_tap(name) and truth.shape != port.shape:
            yield not_judged(name, port.shape, "its rows are not the tokens")
        else:
            yield judged(name, port, truth, limit)
        progress(name)


def told_dtype(left: Dump, right: Dump) -> str:
    """Return the coarser dtype of the two, as a sketch says it and a tensor shows it."""
    known = [dump.about.get("dtype", "") for dump in (left, right) if isinstance(dump, Sketched)]
    known += [dtype_of(dump, dump, replayed=False)[0] for dump in (left, right)
              if not isinstance(dump, Sketched)]  # fmt: skip
    return max((one for one in known if one in EPSILONS), key=EPSILONS.__getitem__,
               default="float32")  # fmt: skip


def check_alike(left: Dump, right: Dump) -> None:
    """Raise InputError unless both have the same tokens of their prompts, and no padding."""
    for key in ("positions", "padding"):
        ours, theirs = left.about.get(key), right.about.get(key)
        if ours != theirs and not (key == "padding" and None in (ours, theirs)):
            shown = {True: "all tokens", False: "some"}
            what = UNLIKE.format(ours=shown[theirs is None], theirs=shown[ours is None],
                                 other=left.path)  # fmt: skip
            raise InputError(right.path, what, key)
    for dump in (left, right):
        if len({*map(len, dump.batch or [])}) > 1:
            raise InputError(
                dump.path, "is a batch of unequal prompts, which sketches do not judge"
            )
