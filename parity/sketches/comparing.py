"""Compare two runs of which one, or both, are sketches: where do they part, and what to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockstep.parity.diffing.plain import not_judged, rounding
from lockstep.parity.dumps.dtype import dtype_of
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.trace_file import TAGS
from lockstep.parity.excerpts.dumped import excerpt_in
from lockstep.parity.excerpts.orders import is_split
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.names import is_tap
from lockstep.parity.sketches.judging import judged, seems_swapped
from lockstep.parity.sketches.sides import Side, Sketched, side_of
from lockstep.parity.sketches.suspects import Reads, suspects_of
from lockstep.reference.checkpoint.errors import InputError

ABOUT = (
    "compared by sketches: own error is not known; differences are estimates, good to about a "
    "fifth, and places are parts of an axis; what is off in a few numbers may be too little to see"
)
EQUAL = "{some} of {all} taps hold the same bits on both sides, by their hashes"
MOVED = "its axes lie otherwise on the other side, and a sketch cannot be moved"
UNLIKE = "has other positions of the prompt than {other}: a sketch cannot be cut"
NAMES = {tag: name for name, tag in TAGS.items()}


def compare_sketches(
    left: Dump,
    right: Dump,
    *,
    reads: Reads | None,
    progress: Callable[[str], None],
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
            tap = judged(name, port, truth, limit)
            swapped = tap.status == "differs" and is_split(name, port.shape)
            if swapped and seems_swapped(port, truth, limit):
                tap = not_judged(name, port.shape, MOVED)
            yield tap
        progress(name)


def told_dtype(left: Dump, right: Dump) -> str:
    """Return the coarser dtype of the two, as a sketch says or stores it, and a tensor shows it."""
    known = [dtype_in(dump) for dump in (left, right) if isinstance(dump, Sketched)]
    known += [dtype_of(dump, dump, replayed=False)[0] for dump in (left, right)
              if not isinstance(dump, Sketched)]  # fmt: skip
    return max((one for one in known if one in EPSILONS), key=EPSILONS.__getitem__,
               default="float32")  # fmt: skip


def dtype_in(dump: Sketched) -> str:
    """Return what a sketch says it was computed in, else the coarsest dtype that it was made of.

    What was widened before it was sketched shows nothing of that.
    """
    said = dump.about.get("dtype")
    if said in EPSILONS:
        return said
    stored = {NAMES[entry.dtype] for entry in dump.entries.values()} & EPSILONS.keys()
    return max(stored, key=EPSILONS.__getitem__, default="")


def check_alike(left: Dump, right: Dump) -> None:
    """Raise InputError unless both have the same tokens of their prompts, and no padding."""
    if positions_of(left, right) != positions_of(right, left):
        raise InputError(right.path, UNLIKE.format(other=left.path), "positions")
    ours, theirs = left.padding, right.padding
    if ours != theirs and None not in (left.about.get("padding"), right.about.get("padding")):
        raise InputError(right.path, f"is filled up on the {theirs}, but {left.path} on the {ours}")
    for dump in (left, right):
        if len({*map(len, dump.batch or [])}) > 1:
            raise InputError(
                dump.path, "is a batch of unequal prompts, which sketches do not judge"
            )


def positions_of(dump: Dump, other: Dump) -> list[list[int]] | None:
    """Return which tokens of each prompt a side has, None for all that nobody counts.

    Raises: InputError if what it says of them is nonsense.
    """
    prompts = dump.batch or other.batch
    if prompts is None and (dump.tokens or other.tokens):
        prompts = [dump.tokens or other.tokens or []]
    excerpt = excerpt_in(dump, prompts)
    if excerpt is not None:
        return [*map(list, excerpt.rows)]
    return None if prompts is None else [[*range(len(prompt))] for prompt in prompts]
