"""What every rank wrote of a run, against its slice of the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

from lockstep.parity.diffing.plain import judged_plainly
from lockstep.parity.judging.result import Result, Tap
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.parallel.each import Each
from lockstep.reference.parallel.model import ParallelModel

TRUST = "ranks are compared tap by tap: rounding alone is allowed, and no tap is replayed"


def compare(
    reference: ParallelModel, dumps: Sequence[Any], tokens: Sequence[int], *, decode: int, said: str
) -> Result:
    """Compare the taps of every rank, in the order of the forward pass, rank by rank.

    `dumps` has a trace of each rank, of a prefill of `tokens` and `decode` greedy steps. What a
    rank has of its own (heads, inner numbers) is held against that rank's; what it should share
    with all, against that. A tap that a backend fuses away is in no trace. The reference is fed
    what the ranks chose: at a near tie, right ones may choose another token than it would.
    Raises: InputError if a step has nothing to compare, or a tap is not in the traces of all.
    """
    result = Result(left=f"reference {reference.dtype}, {len(dumps)} ranks", right=said)
    result.command, result.notes = "check", [TRUST]
    chosen, cache, fed = chosen_by_all(reference, dumps, decode), reference.make_cache(), [*tokens]
    for step in range(len(chosen) + 1):
        taps = taps_of_step(reference, dumps, fed, cache=cache, step=step)
        if all(tap.status == "not judged" for tap in taps):
            what = f"nothing was compared in step {step}: no tap has a partner"
            raise InputError(reference.checkpoint.path, what)
        result.taps += taps
        fed = chosen[step : step + 1]
    if len(chosen) < decode:
        result.taps.append(parted(dumps, len(chosen)))
    return result


def chosen_by_all(reference: ParallelModel, dumps: Sequence[Any], decode: int) -> list[int]:
    """Return the tokens that all ranks were fed behind the prompt, up to where they part.

    Raises: InputError if a rank does not say as many as there are steps.
    """
    for rank, dump in enumerate(dumps):
        if decode and len(dump.decoded) != decode:
            what = f"rank {rank} says {len(dump.decoded)} tokens of {decode} steps"
            raise InputError(reference.checkpoint.path, what)
    steps = zip(*(dump.decoded for dump in dumps), strict=True) if decode else ()
    return [ids[0] for ids in takewhile(lambda ids: len(set(ids)) == 1, steps)]


def parted(dumps: Sequence[Any], fed: int) -> Tap:
    """Return what is wrong where ranks choose different tokens: all have the same logits."""
    ids = ", ".join(str(dump.decoded[fed]) for dump in dumps)
    place = f"the ranks chose {ids}, but should choose one token: no later step is compared"
    return Tap(f"step.{fed + 1}/decoded", None, (len(dumps),), "differs", place=place)


def taps_of_step(
    reference: ParallelModel, dumps: Sequence[Any], fed: list[int], *, cache: Any, step: int
) -> list[Tap]:
    """Run one step of the reference, and judge each of its taps as soon as it is there."""
    prefix, taps = f"step.{step}/" if step else "", []

    def judge(name: str, value: Any) -> None:
        taps.extend(judged(reference, prefix + name, value, dumps))

    reference.forward(np.array([fed]), cache=cache, trace=judge)
    return taps


def judged(reference: ParallelModel, name: str, value: Any, dumps: Sequence[Any]) -> list[Tap]:
    """Judge a tap of all ranks: a line for each if it is their own, else one; none if it is fused.

    Raises: InputError if some ranks wrote it and others did not.
    """
    wrote = [name in dump.shapes for dump in dumps]
    if not all(wrote):
        if any(wrote):
            what = f"rank {wrote.index(False)} wrote no {name}, which rank {wrote.index(True)} did"
            raise InputError(reference.checkpoint.path, what)
        return []
    pairs = zip(dumps, of_each(value, len(dumps)), strict=True)
    taps = [judged_plainly(name, dump.read(name), truth, reference.dtype) for dump, truth in pairs]
    if not isinstance(value, Each):
        return worst(taps)
    return [replace(tap, name=f"{name} of rank {rank}") for rank, tap in enumerate(taps)]


def of_each(value: Any, ranks: int) -> Sequence[Any]:
    """Return what every rank should have: its own, or what all have alike."""
    return value if isinstance(value, Each) else [value] * ranks


def worst(taps: list[Tap]) -> list[Tap]:
    """Keep of what all ranks should have alike the first that differs, else the farthest off."""
    for rank, tap in enumerate(taps):
        if tap.status != "ok":
            return [replace(tap, place=f"rank {rank}: {tap.place}")]
    return sorted(taps, key=lambda tap: tap.rms_rel or 0.0)[-1:]
