"""Judge a dump of some tokens of its prompt against its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.check import with_heritage
from lockstep.parity.cli.output import counted
from lockstep.parity.diffing.plain import judged_by_rows, judged_plainly, rounding
from lockstep.parity.diffing.with_oracle import (
    NO_TOKENS,
    against,
    last_step,
    of_batch,
    read_all,
    steps,
)
from lockstep.parity.excerpts.excerpt import Excerpt
from lockstep.parity.excerpts.oracle import ExcerptOracle
from lockstep.parity.judging.padding import Padding
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import CACHED
from lockstep.parity.resuming.kept_taps import NOTHING, Kept
from lockstep.reference.checkpoint.errors import InputError

END_TO_END = (
    "{count} held against the reference's own run, not computed again: {why}. "
    "With the caches in the dump (--taps '*,*.cached_*') attention is computed again too"
)
GROWTH = 4.0  # times the error of what was right before: rounding may add so much
MOST = 8.0  # times the limit of a plain diff, but no more
NEEDS = "it hangs on keys and values of tokens that are not at hand"


def with_some_tokens(
    result: Result,
    left: Alignment,
    right: Alignment,
    model: Any,
    tokens: list[int] | None,
    dtype: str,
    progress: Callable[[str], None],
    excerpt: Excerpt,
    rows: list[list[int]] | None = None,
    kept: Kept = NOTHING,
) -> None:
    """Walk the reference over whole prompts and judge what the right side has of some tokens.

    What is `kept` of an interrupted run is not judged again, but the reference runs all the same.
    `rows` are the prompts of a batch.
    """
    if not tokens and not rows:
        raise InputError(right.dump.path, NO_TOKENS)
    whole = None if rows is None else Padding(excerpt.lengths)
    padding = None if rows is None else excerpt.padding
    fed = steps(left, right, tokens or []) if rows is None else of_batch(left, right, rows)
    oracle = ExcerptOracle(model, dtype, excerpt)
    for step in range(last_step(right) + 1):
        prefix = f"step.{step}/" if step else ""
        lengths = None if whole is None else whole.lengths
        for stage in oracle.stages(fed(step, oracle), step=step, lengths=lengths):
            shapes = {name: value.shape for name, value in stage.truth.items()}
            port, spoilt = read_all(right, prefix, shapes)
            caches = held(right, prefix, stage.recorded.recorded.taps)
            if (known := kept.taps(prefix + stage.name)) is not None:
                oracle.pass_by(stage, port, caches, prefix, padding)
                result.taps += with_heritage(known, result.first_divergence)
                for tap in known:
                    progress(tap.name)
                continue
            with np.errstate(all="ignore"):
                judged, instead = oracle.judge(stage, port, caches, prefix, padding)
                found = {tap.name: tap for tap in judged} | spoilt
                found = {name: against(tap, left, port.get(name.removeprefix(prefix)), padding)
                         for name, tap in found.items()}  # fmt: skip
                names, port = [*stage.truth, *stage.caches], port | caches
                taps = in_order(names, found, instead, port, prefix, dtype, padding, result)
            kept.add(prefix + stage.name, taps)
            result.taps += with_heritage(taps, result.first_divergence)
            for tap in taps:
                progress(tap.name)
    result.notes += not_computed_again(result)


def in_order(
    names: Sequence[str],
    found: Mapping[str, Tap],
    instead: Mapping[str, np.ndarray],
    port: Mapping[str, np.ndarray],
    prefix: str,
    dtype: str,
    padding: Padding | None,
    result: Result,
) -> list[Tap]:
    """Put the taps of a stage in order, those that nothing is known of held against `instead`."""
    taps: list[Tap] = []
    wrong = result.first_divergence is not None
    for name in names:
        if prefix + name in found:
            taps.append(found[prefix + name])
        elif name in instead:
            limit = allowed(dtype, [*result.taps, *taps])
            tap = end_to_end(prefix + name, port[name], instead[name], dtype, padding, wrong, limit)
            taps.append(tap)
        else:
            continue
        wrong = wrong or taps[-1].is_wrong
    return taps


def allowed(dtype: str, before: Sequence[Tap]) -> float:
    """Return how far a right port may be from the reference's own run behind these taps.

    In a deep model rounding adds up: what was right before shows how far. Half precision's limit is
    wide as it is.
    """
    base = rounding(dtype)
    if dtype not in ("float32", "float64"):
        return base
    right = (tap.rms_rel or 0.0 for tap in before if tap.status == "ok")
    return min(max(base, GROWTH * max(right, default=0.0)), MOST * base)


def end_to_end(
    name: str,
    port: np.ndarray,
    truth: np.ndarray,
    dtype: str,
    padding: Padding | None,
    wrong: bool,
    limit: float,
) -> Tap:
    """Hold a tap against the reference's own run; if something is wrong before it, in vain."""
    if padding is None:
        tap = judged_plainly(name, port, truth, dtype, limit=limit)
    else:
        tap = judged_by_rows(name, port, truth, dtype, padding, limit=limit)
    if tap.status != "differs":
        return tap
    if wrong:
        return replace(tap, status="not judged", place=f"{NEEDS}, and something is wrong before it")
    return replace(tap, place=f"{tap.place}; end to end, for {NEEDS}")


def held(side: Alignment, prefix: str, taps: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read what the port's caches hold of all tokens, behind the layer of a stage."""
    names = [name for name in taps if name.endswith(CACHED) and prefix + name in side.names]
    return {name: side.read(prefix + name) for name in names}


def not_computed_again(result: Result) -> list[str]:
    """Say how many taps were not computed again."""
    open_ = [tap for tap in result.taps if tap.own_error is None and tap.rms_rel is not None]
    count = sum(not tap.name.endswith(CACHED) for tap in open_)
    if not count:
        return []
    why = "they hang on keys and values of tokens that RIGHT has not"
    return [END_TO_END.format(count=counted(count, "tap"), why=why)]
