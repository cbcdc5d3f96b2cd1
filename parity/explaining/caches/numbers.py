"""The numbers in known slots of a cache: rounded on purpose, or a dump of keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.caches.bugs import Bug
from lockstep.parity.explaining.caches.found import Arrays, Cached, accuse, name_of
from lockstep.parity.explaining.caches.slots import Content
from lockstep.parity.explaining.caches.taps import Kept
from lockstep.parity.explaining.said.diagnosis import Unexplained
from lockstep.parity.faults.found_again import BY_HEAD, ROUNDED, VARIANTS_OF_ROUNDING
from lockstep.parity.faults.rounded_caches import BY_CHANNEL, by_channel
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.judging.metrics import rms

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

ROUNDING = "kv-int8-noise"
ALIKE = 0.35  # of the error that a rounding leaves, if it is the right one


def judge_numbers(
    part: Kept,
    arrays: Arrays,
    rights: Mapping[str, np.ndarray],
    content: Mapping[int, list[Content]],
    case: Case,
    found: Cached,
) -> None:
    """Judge the numbers of known slots: as rounded on purpose, or as keys and values themselves."""
    truth, known = rights[part.tap], part.number in case.dumped
    old, seen = in_order(part, arrays, truth, content, last=True)
    noise = EPSILONS[case.dtype] if known else case.trial.relative_noise(
        case.graph.piece(part.number, case.dumped), None)  # fmt: skip
    mark = np.broadcast_to(seen[:, None, :, None], truth.shape)
    error = far_from(truth, old, mark)
    kind = rounding_of(part, truth, old, mark, case) if error > 4 * noise else None
    value, seen = in_order(part, arrays, truth, content, last=False)
    if kind is not None:
        accuse(Bug(ROUNDING, beside_keys(kind, part, found)), [part], case, found, before=error)
    elif not known:
        hand_on([part], {part.tap: value}, case, found, seen)
    elif error > noise:
        said = f"not what {case.sides.names[case.graph.calls[part.number].taps[0]]} holds"
        found.open.append(Unexplained(name_of(part, case), error, 0.0, said))


def far_from(truth: np.ndarray, value: np.ndarray, mark: np.ndarray) -> float:
    """Return how far the marked numbers are from the right ones, of their size."""
    exact, stored = truth[mark].astype(np.float64), value[mark].astype(np.float64)
    return rms(stored - exact) / (rms(exact) or 1.0)


def rounding_of(
    part: Kept, truth: np.ndarray, value: np.ndarray, mark: np.ndarray, case: Case
) -> str | None:
    """Return the way in which a cache rounds what it keeps, None if none explains it."""
    right = truth.astype(np.float32)
    before, best, found = rms((value - right)[mark]), ALIKE, None
    ways = {variant: ROUNDED[kind] for variant, kind in VARIANTS_OF_ROUNDING.items()}
    ways |= {BY_CHANNEL: by_channel(case.graph)} if part.tap.endswith("cached_keys") else {}
    for variant, way in ways.items():
        try:
            rounded = way(case.model.ops, right)
        except ValueError:  # heads that are not as wide as its groups
            continue
        left = rms((value - rounded)[mark]) / before
        if left < best:
            best, found = left, variant
    return found


def beside_keys(kind: str, part: Kept, found: Cached) -> str:
    """Return what the layer's keys are rounded by, where that is how its values should be, too."""
    keys = {one.variant for one in found.bugs if one.id == ROUNDING and part.layer in one.layers}
    return BY_CHANNEL if kind == BY_HEAD and BY_CHANNEL in keys else kind


def in_order(
    part: Kept,
    arrays: Arrays,
    truth: np.ndarray,
    content: Mapping[int, list[Content]],
    *,
    last: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the slots in the order of the tokens, (B, G, T, D), and which tokens were there.

    Each is taken as it was stored first, or as it was found last, which a later pass reads.
    """
    some = arrays[part.tap]
    value = truth.astype(next(iter(some.values())).dtype)
    seen = np.zeros((len(value), value.shape[2]), bool)
    for step in sorted(content, reverse=not last):
        for row, one in enumerate(content[step]):
            for slot, token in enumerate(one.slots):
                if token >= 0:
                    value[row, :, token] = some[step][row, :, slot]
                    seen[row, token] = True
    return value, seen


def grows(arrays: Arrays, case: Case) -> bool:
    """Say whether caches hold as many slots as there were tokens, and never change one of them."""
    ends = np.cumsum(case.sides.lengths)
    for some in arrays.values():
        steps = sorted(some)
        if any(some[step].shape[2] != ends[step] for step in steps):
            return False
        if any(not np.array_equal(some[b][:, :, : ends[a]], some[a]) for a, b in pairwise(steps)):
            return False
        if steps[-1] != len(ends) - 1:
            return False
    return True


def hand_on(
    parts: Sequence[Kept],
    values: Mapping[str, np.ndarray],
    case: Case,
    found: Cached,
    seen: np.ndarray | None = None,
) -> None:
    """Let what caches hold be the port's keys and values, where it dumped no others."""
    for part in parts:
        if part.number in case.dumped:
            continue
        case.dumped[part.number] = values[part.tap]
        found.handed.add(part.tap)
        if seen is not None and not seen.all():
            before = case.trial.unseen.get(part.number, np.zeros_like(seen))
            case.trial.unseen[part.number] = before | ~seen
