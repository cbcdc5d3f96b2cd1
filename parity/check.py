"""Run the reference and a backend in lock step, and compare every tap as it is made."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.dumps.steps import names_caches
from lockstep.parity.dumps.tracing import names_of
from lockstep.parity.excerpts.blocks import asks_for_scores, block_of, said_of_blocks
from lockstep.parity.judging.padding import OVER_KEYS, Padding
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.judging.unheard import held_to_unheard, unheard
from lockstep.parity.naming.names import matched, parted
from lockstep.parity.replaying.cached import caches_behind
from lockstep.parity.replaying.oracle import Oracle
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model

Progress = Callable[[str], None]


def check(
    reference: Model,
    port: Any,
    tokens: Any,
    *,
    decode: int = 0,
    positions: Any = None,
    lengths: Any = None,
    taps: Sequence[str] | None = None,
    at: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Compare `port`, a model with the interface of `reference`, layer by layer over a prompt.

    `tokens` is (B, L), and so are `positions`, which default to 0, 1, 2 and so on. `lengths` (B,)
    says how many of each row are real; what fills up the others is compared with nothing. After the
    prefill, `decode` further steps feed both sides the reference's greedy choice; what the caches
    hold is then compared too, or if a glob names it. A port that takes another way where nobody
    listens takes that too, and is to make the same logits, to the bit. Each side holds one layer of
    activations at a time. `taps` are globs of the names that are compared, None all; `at` says
    which tokens of the prompts, such as "last:8": of no others more than one tap is kept.
    Raises: InputError if nothing could be compared, or a prompt has no such position.
    """
    result = Result(left=f"reference {reference.dtype}", right=described(port), command="check")
    tokens = np.asarray(tokens)
    padding = padding_of(tokens, lengths)
    caches = decode > 0 or names_caches(taps)
    sides = both_sides(reference, port, tokens, padding, at, taps, caches=caches)
    result.notes += sides.notes
    for step in range(decode + 1):
        prefix = f"step.{step}/" if step else ""
        placed = {} if step else {"positions": positions, "lengths": lengths}
        for name, found, missing in sides.stages(tokens, step, placed, result):
            result.taps += of_names(with_heritage(found, result.first_divergence), taps)
            result.unmatched += of_names(missing, taps)
            if progress is not None:
                progress(prefix + name)
        if step < decode:
            tokens = chosen(np.asarray(sides.logits), None if step or at else padding)
    if all(tap.max_abs == 0 and tap.rms_rel is None for tap in result.taps):
        why = "all taps are zero on both sides" if result.taps else "no tap has a partner"
        raise InputError(reference.checkpoint.path, f"nothing was compared: {why}")
    return result


def both_sides(
    reference: Model, port: Any, tokens: np.ndarray, padding: Padding | None, at: str | None,
    taps: Sequence[str] | None, *, caches: bool,
) -> Any:  # fmt: skip
    """Return what advances both sides, and judges all tokens or some."""
    if at is None:
        block = block_of(reference, *tokens.shape) if has_no_scores(port, taps) else None
        oracle = Oracle(reference, port.dtype, caches=caches, block=block)
        said = () if block is None else (said_of_blocks(reference, block, *tokens.shape),)
        return AllTokens(oracle, port, padding, said)
    from lockstep.parity.excerpts.checking import SomeTokens
    from lockstep.parity.excerpts.excerpt import excerpt_of

    lengths = [tokens.shape[1]] * len(tokens) if padding is None else padding.lengths
    excerpt = excerpt_of(at, lengths)
    assert excerpt is not None
    return SomeTokens(reference, port, excerpt, padding)


def has_no_scores(port: Any, taps: Sequence[str] | None) -> bool:
    """Say whether no scores are compared: none are asked for, or a backend's attention makes none,
    as that of every one but the reference.
    """
    if getattr(port, "runs_on", "reference") != "reference":
        return True
    return not asks_for_scores(names_of(port.checkpoint, cached=False), taps)


@dataclass
class AllTokens:
    """Two sides that advance together, a stage at a time."""

    oracle: Oracle
    port: Any
    padding: Padding | None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.cache = self.port.make_cache()

    @property
    def logits(self) -> Any:
        return self.oracle.logits

    def stages(
        self, tokens: np.ndarray, step: int, placed: dict[str, Any], result: Result
    ) -> Iterator[tuple[str, list[Tap], list[str]]]:
        """Advance by one stage at a time: yield its name, its taps, and those missing."""
        oracle, prefix = self.oracle, f"step.{step}/" if step else ""
        made: dict[str, Any] = {}
        quiet = unheard(self.port, tokens, self.cache) if step else None
        theirs = self.port.stages(tokens, cache=self.cache, trace=made.__setitem__, **placed)
        for stage in oracle.stages(tokens, **placed):
            if next(theirs, None) is None:
                what = f"its stages end before {stage.name}, which is compared next"
                raise InputError("port", what)
            if oracle.caches:
                made |= dict(caches_behind(stage.name, self.cache))
            over = OVER_KEYS if oracle.block else ()  # not asked for, and not made by the reference
            values = {
                name: to_numpy(value) for name, value in made.items() if not name.endswith(over)
            }
            taps = oracle.judge(stage, values, prefix, self.padding)
            taps = held_to_unheard(taps, values, quiet)
            missing = stage.recorded.taps.keys() ^ values.keys()
            yield stage.name, taps, [prefix + name for name in sorted(missing)]
            made.clear()


def of_names(found: list[Any], globs: Sequence[str] | None) -> list[Any]:
    """Leave out taps, or names of taps, that no glob chooses."""
    if globs is None:
        return found
    return [one for one in found if matched(parted(getattr(one, "name", one))[1], globs)]


def padding_of(tokens: np.ndarray, lengths: Any) -> Padding | None:
    """Return which tokens of a batch are real, None of a single row."""
    if tokens.ndim != 2 or len(tokens) < 2:
        return None
    return Padding(tuple([tokens.shape[1]] * len(tokens) if lengths is None else map(int, lengths)))


def chosen(logits: np.ndarray, padding: Padding | None) -> np.ndarray:
    """Return the likeliest token behind each row's last one, (B, 1)."""
    if padding is None:
        return np.argmax(logits[:, -1:], axis=-1)
    return np.argmax(logits[np.arange(len(logits)), padding.last], axis=-1)[:, None]


def with_heritage(taps: list[Tap], first: Tap | None) -> list[Tap]:
    """Mark as inherited what is right in itself but far off because of an earlier divergence."""
    marked = []
    for tap in taps:
        first = first or (tap if tap.status == "diverged" else None)
        heavy = tap.inherited_error is not None and not tap.inherited_error <= 10 * (tap.noise or 0)
        if tap.status == "ok" and first is not None and heavy:
            tap = replace(tap, status="inherited")
        marked.append(tap)
    return marked


def described(port: Any) -> str:
    backend = getattr(port, "backend", None)
    return f"{backend.name if backend else 'reference'} {port.dtype}"
