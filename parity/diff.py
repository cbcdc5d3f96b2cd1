"""Compare two traces or dumps, with or without the model that they came from."""

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from lockstep.parity.cli.output import counted
from lockstep.parity.diffing.plain import (
    TRUST,
    judged_by_rows,
    judged_plainly,
    not_judged,
    rounding,
)
from lockstep.parity.diffing.with_oracle import with_oracle
from lockstep.parity.dumps.crew import Crew, cores
from lockstep.parity.dumps.dtype import dtype_of
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.excerpts.orders import LEFT_OUT
from lockstep.parity.excerpts.shared import shared
from lockstep.parity.judging.padding import Padding, on_the_right, shared_rows
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.align import Alignment, align
from lockstep.parity.naming.names import CACHED, is_tap, step_of
from lockstep.parity.replaying.cached import OTHER_SLOTS
from lockstep.parity.resuming.kept_taps import NOTHING, Kept
from lockstep.parity.sketches.comparing import compare_sketches
from lockstep.parity.sketches.sides import Sketched, open_side
from lockstep.parity.sketches.suspects import Reads
from lockstep.reference.checkpoint.errors import InputError

Progress = Callable[[str], None]
SAME = "every compared value is the same on both sides, to the bit"
ALONE = "no tap is in both: right is held against the model alone"
ZEROS = "zero everywhere on both sides, which shows nothing: {count}"
FED = "the sides were fed other tokens after the prompt, from step {step} on"
DOUBT = "left is not what the model gives, in {count} from {name} on: the verdict is of right"
UNTOLD = "{side} says no tokens: that both sides saw one prompt is taken on trust"

THREADS = 16  # at most: each keeps two pieces
MANY = 1 << 25  # numbers of a side: in the time that they take NumPy, Numba has been loaded


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
    left, right, tokens, rows = both.left, both.right, both.tokens, both.rows
    padding, excerpt = both.padding, both.excerpt
    dtype, found_out = dtype_of(left, right, replayed=model is not None)
    if model is None:
        sides = aligned(left, right, padding)
        result.notes.append(TRUST)
        result.taps = list(plain(*sides, dtype, both.length, progress, padding, kept))
    elif isinstance(model, str | Path):
        from lockstep.parity.diffing.with_modules import with_modules

        sides = with_modules(result, left, right, model, tokens, dtype, progress, rows)
    elif excerpt is not None:
        from lockstep.parity.diffing.some_tokens import with_some_tokens

        sides = aligned(left, right, padding)
        with_some_tokens(result, *sides, model, tokens, dtype, progress, excerpt, rows, kept)
    else:
        sides = aligned(left, right, padding)
        with_oracle(result, *sides, model, tokens, dtype, progress, rows, kept)
    result.unmatched = sorted(sides[0].names.keys() ^ sides[1].names.keys())
    if model is not None:
        result.taps += beyond_the_model(result, *sides)
        result.notes += doubts(result, dtype_of(left, right, replayed=False)[0])
    if both.unread:
        known = {tap.name for tap in result.taps}
        result.taps += [not_judged(name, shape, LEFT_OUT) for name, shape in both.unread.items()
                        if name not in known]  # fmt: skip
        result.unmatched = [name for name in result.unmatched if name not in both.unread]
    result.conventions = [f"left: {line}" for line in sides[0].plan]
    result.conventions += [f"right: {line}" for line in sides[1].plan] + found_out
    result.notes += [*cautions(result, left, right), *both.told]
    return result


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


def plain(
    left: Alignment,
    right: Alignment,
    dtype: str,
    length: int,
    progress: Progress,
    padding: Padding | None,
    kept: Kept = NOTHING,
) -> Iterator[Tap]:
    """Compare every shared tap by its distance alone. `length` is how many tokens it is of."""
    many = sum(map(prod, left.dump.shapes.values())) >= MANY
    with Crew(min(cores(), THREADS), compiled=many) as crew:
        for name in left.names:
            if name in right.names:
                known = kept.taps(name)
                if known is None:
                    known = [judged(name, left, right, dtype, length, padding, crew)]
                    kept.add(name, known)
                yield from known
                progress(name)


def judged(
    name: str,
    left: Alignment,
    right: Alignment,
    dtype: str,
    length: int,
    padding: Padding | None,
    crew: Crew,
) -> Tap:
    """Compare a tap that both sides have."""
    truth = left.parts(name)
    port = right.parts(name, truth.shape)
    if name.endswith(CACHED) and port.shape != truth.shape:
        return not_judged(name, port.shape, OTHER_SLOTS)
    if padding is not None and port.shape == truth.shape:
        return judged_by_rows(name, port.whole(), truth.whole(), dtype, padding)
    if is_tap(name) or rows_are_tokens(name, port.shape, truth.shape, length):
        return judged_plainly(name, port, truth, dtype, crew)
    return not_judged(name, port.shape, "its rows are not the tokens")


def rows_are_tokens(name: str, port: tuple[int, ...], truth: tuple[int, ...], length: int) -> bool:
    """Say whether a module that Lockstep does not know gives a row, or several, for each token.

    An expert of a mixture, or a tower for images, has other rows.
    """
    length = 1 if step_of(name) else length
    return port == truth and prod(truth[:-1]) % max(length, 1) == 0


def beyond_the_model(result: Result, left: Alignment, right: Alignment) -> Iterator[Tap]:
    """List what both sides have and no operation of the model makes."""
    judged = {tap.name for tap in result.taps}
    for name in left.names:
        if name in right.names and name not in judged:
            shape = right.dump.shapes[right.names[name]]
            why = OTHER_SLOTS if name.endswith(CACHED) else "the model makes no such tap"
            yield not_judged(name, shape, why)


def cautions(result: Result, left: Dump, right: Dump) -> list[str]:
    """Say what a reader should know before trusting the verdict.

    Raises: InputError if nothing was compared, or nothing but zeros.
    """
    judged = [tap for tap in result.taps if tap.status != "not judged"]
    if not judged:
        raise InputError(right.path, f"nothing was compared: no tap is in {left.path} too")
    zeros = [tap for tap in judged if tap.max_abs == 0 and tap.rms_rel is None]
    if len(zeros) == len(judged):
        raise InputError(right.path, f"nothing was compared: it and {left.path} hold only zeros")
    parted = first_apart(left.decoded, right.decoded)
    untold = [side for side, dump in (("left", left), ("right", right))
              if dump.tokens is None and dump.batch is None]  # fmt: skip
    alone = set(result.unmatched)
    both = [tap for tap in judged if tap.name not in alone]
    same = both and all(tap.max_abs == 0 for tap in both)
    return [
        *([] if both else [ALONE]),
        *([ZEROS.format(count=counted(zeros, "tap"))] if zeros else []),
        *([SAME] if same else []),
        *([FED.format(step=parted + 1)] if parted is not None else []),
        *(UNTOLD.format(side=side) for side in untold),
    ]


def doubts(result: Result, dtype: str) -> list[str]:
    """Say where `left` must be wrong: `right` is what the model gives, and `left` is far from it.

    `dtype` is the coarser one of the two.
    """
    limit = rounding(dtype)
    right = [tap for tap in result.taps if tap.status == "ok"]
    agreed = [tap for tap in right if close(tap.inherited_error, limit)]
    wrong = [tap.name for tap in agreed if tap.max_abs != 0 and not close(tap.rms_rel, limit)]
    return [DOUBT.format(count=counted(wrong, "tap"), name=wrong[0])] if wrong else []


def close(error: float | None, limit: float) -> bool:
    return error is not None and error <= limit


def first_apart(ours: list[int], theirs: list[int]) -> int | None:
    """Return the first place where two lists, as far as both go, hold other ids."""
    pairs = zip(ours, theirs, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), None)


def shared_tokens(left: Dump, right: Dump) -> list[int] | None:
    """Return the prompt of both sides, from whichever says it.

    Raises: InputError at the first place where they are not the same.
    """
    ours, theirs = left.tokens, right.tokens
    if ours is None or theirs is None or ours == theirs:
        return theirs if ours is None else ours
    place = first_apart(ours, theirs)
    place = min(len(ours), len(theirs)) if place is None else place
    what = f"the prompt is not that of {left.path}: the token ids differ"
    raise InputError(right.path, what, f"from position {place} on")
