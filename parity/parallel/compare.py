"""What every rank wrote of a run, against its slice of the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    with all, against that. A tap that a backend fuses away is in no trace.
    Raises: InputError if nothing could be compared.
    """
    result = Result(left=f"reference {reference.dtype}, {len(dumps)} ranks", right=said)
    result.command, result.notes = "check", [TRUST]
    cache, fed = reference.make_cache(), np.array([list(tokens)])
    for step in range(decode + 1):
        prefix = f"step.{step}/" if step else ""

        def judge(name: str, value: Any, prefix: str = prefix) -> None:
            taps = [
                judged_plainly(prefix + name, dump.read(prefix + name), truth, reference.dtype)
                for dump, truth in zip(dumps, of_each(value, len(dumps)), strict=True)
                if prefix + name in dump.shapes
            ]
            if isinstance(value, Each):
                taps = [replace(tap, name=f"{tap.name} of rank {i}") for i, tap in enumerate(taps)]
            result.taps += taps if isinstance(value, Each) else worst(taps)

        logits = reference.forward(fed, cache=cache, trace=judge)
        logits = logits[0] if isinstance(logits, Each) else logits
        fed = np.argmax(logits[:, -1:], axis=-1)
    if all(not tap.max_abs and tap.rms_rel is None for tap in result.taps):
        raise InputError(reference.checkpoint.path, "nothing was compared: no tap has a partner")
    return result


def of_each(value: Any, ranks: int) -> Sequence[Any]:
    """Return what every rank should have: its own, or what all have alike."""
    return value if isinstance(value, Each) else [value] * ranks


def worst(taps: list[Tap]) -> list[Tap]:
    """Keep of what all ranks should have alike the first that differs, else the farthest off."""
    for rank, tap in enumerate(taps):
        if tap.status != "ok":
            return [replace(tap, place=f"rank {rank}: {tap.place}")]
    return sorted(taps, key=lambda tap: tap.rms_rel or 0.0)[-1:]
