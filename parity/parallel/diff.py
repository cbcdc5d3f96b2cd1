"""`diff` of the dumps of ranks, with those of as many of another run, or one of a whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lockstep.parity.diffing.cautions import FED, UNTOLD
from lockstep.parity.diffing.plain import TRUST
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.judging.result import Result
from lockstep.parity.judging.same_tokens import first_apart
from lockstep.parity.naming.align import Alignment, align
from lockstep.parity.parallel.forced import Judge, base, moved, readings
from lockstep.parity.parallel.pieces import taken_apart
from lockstep.parity.parallel.ranks import Ranks, dtype_of, path_in
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.parallel.each import Each

Progress = Callable[[str], None]


def diff_ranks(
    left: Sequence[Dump],
    right: Sequence[Dump],
    *,
    paths: tuple[str, str],
    progress: Progress = lambda name: None,
) -> Result:
    """Compare what each rank of a port dumped with what it should be, tap by tap.

    `left` has a dump of each rank too, or one of the whole model, of which each rank's part is
    taken. What all ranks should have alike is one line, of the rank that is farthest off.
    Raises: InputError if the dumps say different prompts, or nothing can be compared.
    """
    sides, ranks = [align(dump) for dump in left], Ranks(tuple(align(dump) for dump in right))
    check_prompts([*left, *right])
    dtype = max((dtype_of(left)[0], dtype_of(right)[0]), key=EPSILONS.__getitem__)
    judge = Judge(ranks, dtype)
    for tap, value in truths(sides, ranks):
        judge(tap, value)
        progress(tap)
    if not judge.taps:
        raise InputError(paths[1], f"nothing was compared: no tap is in {paths[0]} too")
    result = Result(left=paths[0], right=paths[1], taps=judge.taps)
    compared = {base(tap.name) for tap in judge.taps}
    names = {tap for side in sides for tap in side.names} | {*ranks.names}
    result.unmatched = sorted(names - compared)
    result.notes = [TRUST, *untold(left, right), *moved(judge)]
    parted = first_apart(left[0].decoded, right[0].decoded)
    if parted is not None:
        result.notes.append(FED.format(step=parted + 1))
    result.conventions = [f"right: {line}" for line in (*ranks.plan, *readings(judge))]
    return result


def truths(sides: Sequence[Alignment], ranks: Ranks) -> Iterator[tuple[str, Any]]:
    """Yield what each tap of the port should be: one value for all ranks, or one for each."""
    for tap in sides[0].names:
        if not ranks.wrote(tap) or not all(tap in side.names for side in sides):
            continue
        values = [with_batch(side.read(tap)) for side in sides]
        if len(values) > 1:
            alike = all(same(one, values[0]) for one in values)
            yield tap, values[0] if alike else Each(values)
        else:
            yield tap, dealt(tap, values[0], ranks)


def dealt(tap: str, value: np.ndarray, ranks: Ranks) -> Any:
    """Deal a whole value out as the ranks' shapes say; it stays whole where they have it so."""
    shapes = [side.dump.shapes[side.names[tap]] for side in ranks.sides if tap in side.names]
    if len(shapes) < len(ranks.sides):
        return value
    like = [with_batch(np.broadcast_to(np.zeros(()), shape)) for shape in shapes]
    parts = [taken_apart(path_in(tap), value, like, rank) for rank in range(len(like))]
    return value if any(part is None for part in parts) else Each(parts)


def with_batch(value: np.ndarray) -> np.ndarray:
    """Return a value of one prompt with a batch axis, which many dumps leave out."""
    return value[None] if value.ndim == 2 else value


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def check_prompts(dumps: Sequence[Dump]) -> None:
    """Raises: InputError if two dumps say different prompts, or one is of a batch."""
    said = None
    for dump in dumps:
        if dump.batch is not None:
            raise InputError(dump.path, "is of a batch, but ranks are compared for one prompt")
        if dump.tokens is None:
            continue
        if said is not None and said.tokens != dump.tokens:
            raise InputError(dump.path, f"says another prompt than {said.path}", "tokens")
        said = dump


def untold(left: Sequence[Dump], right: Sequence[Dump]) -> list[str]:
    """Say which side does not tell its prompt."""
    sides = (("left", left), ("right", right))
    return [UNTOLD.format(side=side) for side, dumps in sides
            if all(dump.tokens is None for dump in dumps)]  # fmt: skip
