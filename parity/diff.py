"""Compare two traces or dumps, with or without the model that they came from."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lockstep.parity.diffing.cautions import cautions, doubts
from lockstep.parity.diffing.plain import TRUST, not_judged
from lockstep.parity.diffing.with_oracle import with_oracle
from lockstep.parity.diffing.without_model import without_model
from lockstep.parity.dumps.dtype import dtype_of
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.excerpts.orders import LEFT_OUT
from lockstep.parity.excerpts.shared import Shared, shared
from lockstep.parity.judging.padding import Padding, on_the_right, shared_rows
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.judging.same_tokens import shared_tokens
from lockstep.parity.naming.align import Alignment, align
from lockstep.parity.naming.names import CACHED
from lockstep.parity.replaying.cached import OTHER_SLOTS
from lockstep.parity.resuming.kept_taps import NOTHING, Kept
from lockstep.parity.sketches.comparing import compare_sketches
from lockstep.parity.sketches.sides import Sketched, open_side
from lockstep.parity.sketches.suspects import Reads
from lockstep.reference.checkpoint.errors import InputError

Progress = Callable[[str], None]


def diff(
    left: str | Path | Dump,
    right: str | Path | Dump,
    *,
    model: Any = None,
    reads: Reads | None = None,
    progress: Progress = lambda name: None,
    kept: Kept = NOTHING,
) -> Result:
    """Compare `right`, the port, with `left`, what it should be, tap by tap.

    With `model` every tap of `right` is also replayed from its own inputs, so that own and
    inherited error stand apart. It is a reference model, or the path of any model that
    transformers has, whose torch modules are then the oracle. Both sides are streamed. If one is
    a sketched trace both are compared by sketches; `reads`, from `reads_of(MODEL)`, then says what
    each operation reads, so that `result.suspects` are few. What is `kept` of the same comparison,
    which was interrupted, is not judged again.
    Raises: InputError if a file is bad, the two have other tokens, or nothing can be compared.
    """
    left, right = (side if isinstance(side, Dump) else open_side(side) for side in (left, right))
    if isinstance(left, Sketched) or isinstance(right, Sketched):
        return by_sketches(left, right, model, reads, progress)
    rows = shared_rows(left, right)
    tokens = shared_tokens(left, right) if rows is None else None
    result = Result(left=str(left.path), right=str(right.path))
    both = shared(left, right, model, tokens, rows)
    dtype, found_out = dtype_of(both.left, both.right, replayed=model is not None)
    sides = judge(both, model, dtype, result, progress, kept)
    result.unmatched = sorted(sides[0].names.keys() ^ sides[1].names.keys())
    if model is not None:
        result.taps += beyond_the_model(result, *sides)
        coarser, _ = dtype_of(both.left, both.right, replayed=False)
        result.notes += doubts(result, coarser)
    leave_unread(both, result)
    result.conventions = [f"left: {line}" for line in sides[0].plan]
    result.conventions += [f"right: {line}" for line in sides[1].plan] + found_out
    result.notes += [*cautions(result, both.left, both.right), *both.told]
    return result


def judge(
    both: Shared, model: Any, dtype: str, result: Result, progress: Progress, kept: Kept
) -> tuple[Alignment, Alignment]:
    """Judge every tap by what there is to judge it by; return how both sides align."""
    if isinstance(model, str | Path):
        from lockstep.parity.diffing.with_modules import with_modules

        dumps = both.left, both.right
        return with_modules(result, *dumps, model, both.tokens, dtype, progress, both.rows)
    sides = aligned(both.left, both.right, both.padding)
    if model is None:
        result.notes.append(TRUST)
        told = dtype, both.length, progress, both.padding, kept
        result.taps = list(without_model(*sides, *told))
    elif both.excerpt is not None:
        from lockstep.parity.diffing.some_tokens import with_some_tokens

        told = model, both.tokens, dtype, progress, both.excerpt, both.rows, kept
        with_some_tokens(result, *sides, *told)
    else:
        with_oracle(result, *sides, model, both.tokens, dtype, progress, both.rows, kept)
    return sides


def leave_unread(both: Shared, result: Result) -> None:
    """List the taps of some tokens of which nobody knows the axes."""
    known = {tap.name for tap in result.taps}
    result.taps += [not_judged(name, shape, LEFT_OUT)
                    for name, shape in both.unread.items() if name not in known]  # fmt: skip
    result.unmatched = [name for name in result.unmatched if name not in both.unread]


def by_sketches(
    left: Dump, right: Dump, model: Any, reads: Reads | None, progress: Progress
) -> Result:
    """Compare sketches. Raises: InputError if the sides have other prompts, or a model is given."""
    if model is not None:
        raise InputError(right.path, "sketches cannot be computed again: compare without a model")
    if shared_rows(left, right) is None:
        shared_tokens(left, right)
    result = compare_sketches(left, right, reads=reads, progress=progress)
    result.notes += cautions(result, left, right)
    return result


def aligned(left: Dump, right: Dump, padding: Padding | None) -> tuple[Alignment, Alignment]:
    """Align both sides; rows of a batch that are filled up on the left are turned."""
    sides = align(left), align(right)
    if padding is None:
        return sides
    return on_the_right(sides[0], right, padding), on_the_right(sides[1], left, padding)


def beyond_the_model(result: Result, left: Alignment, right: Alignment) -> Iterator[Tap]:
    """List what both sides have and no operation of the model makes."""
    judged = {tap.name for tap in result.taps}
    for name in left.names:
        if name in right.names and name not in judged:
            shape = right.dump.shapes[right.names[name]]
            why = OTHER_SLOTS if name.endswith(CACHED) else "the model makes no such tap"
            yield not_judged(name, shape, why)
