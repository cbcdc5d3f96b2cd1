"""Values that are off by one factor, or by a norm's gain, which what the port computes next undoes.

Ports fold a scale or a gain into the weights behind it, and scores are often those of a softmax
that counts in powers of 2. Whether a factor is a bug is told by what follows: it is right only if
made of the value without the factor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from lockstep.parity.explaining.case import Case, Progress
from lockstep.parity.explaining.conventions.readings import LITTLE, Values, factor_of, near, takes
from lockstep.parity.explaining.conventions.rounded_when_stored import sort_again
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.faults.tensors import dense
from lockstep.parity.graph import Tensor
from lockstep.parity.graph.graph import Piece
from lockstep.parity.naming.grouping import grouped

STREAM = ("embedding", "scale", "add")
SCALED = "{taps}: {factor:.3g} times the right value, which what follows undoes"
GAINLESS = "{taps}: without the norm's gain, which what follows has in it"


def sort_undone(case: Case, progress: Progress) -> list[str]:
    """Read what is wrong without its factor, where what follows says so; judge all again.

    Weights are folded in all layers alike: in some alone it is no convention.
    """
    calls, found = case.graph.calls, dict[str, list[str]]()
    every = {piece.target: one for piece in case.wrong if (one := folded(case.trial, piece))}
    several = Counter(calls[number].place for number in every)
    judged = Counter(calls[number].place for number in case.judged)
    for number in sorted(every):
        said, read = every[number]
        if several[calls[number].place] == judged[calls[number].place]:
            case.trial.put(read)
            case.trial.remade |= read.keys()
            found.setdefault(said, []).extend(calls[one].taps[0] for one in read)
    if found:
        case.trial.forget()
        sort_again(case, progress)
    return [said.format(taps=grouped(taps)) for said, taps in found.items()]


@np.errstate(all="ignore")  # a broken port may hold anything
def folded(trial: Trial, piece: Piece) -> tuple[str, Values] | None:
    """Return what to say of a piece, and how to read it and what carries its factor on."""
    port, right = trial.dumped[piece.target], trial.centre(None).target(piece.target)
    if port.shape != right.shape or is_of_stream(trial, piece.target):
        return None
    proving = (trial.proving(one, piece.target) for one in (port, right))
    factor, gain = factor_of(*proving), gain_of(trial, piece)
    ways: list[tuple[str, float | np.ndarray]] = []
    if abs(factor - 1) > LITTLE:
        ways.append((SCALED.format(taps="{taps}", factor=factor), 1 / factor))
    if gain is not None:
        ways.append((GAINLESS, gain))
    for said, by in ways:
        if near(port.astype(np.float64) * by, right) and (read := undone(trial, piece, by)):
            return said, read
    return None


def is_of_stream(trial: Trial, number: int) -> bool:
    """Say whether a value is the stream, or added to it: no factor can be folded into a sum."""
    calls = (trial.graph.calls[one] for one in trial.graph.consumers[number])
    return trial.graph.calls[number].op in STREAM or any(one.op == "add" for one in calls)


def gain_of(trial: Trial, piece: Piece) -> np.ndarray | None:
    """Return what a norm multiplies by, None if a piece is none's."""
    call = trial.graph.calls[piece.target]
    if call.op != "rms_norm" or not isinstance(ref := call.inputs[1], Tensor):
        return None
    return dense(trial.ops, trial.read(ref)).astype(np.float64)


def undone(trial: Trial, piece: Piece, by: float | np.ndarray) -> Mapping[int, np.ndarray] | None:
    """Return values multiplied `by` what makes a piece right, if all that is made of them is.

    What has the same factor again carries it on. Something must be wrong with it.
    """
    read = {piece.target: times(trial, piece.target, by)}
    if not (other := trial.over(read)).judge(piece).passed:
        return None
    telling, taken = False, set[int]()
    for one in trial.graph.pieces(trial.dumped):
        takes_some = {number for number in read if takes(one, number, trial)}
        if not takes_some:
            continue
        taken |= takes_some
        if other.judge(one).passed:
            telling |= not trial.judge(one).passed
            continue
        if not isinstance(by, float):  # no gain is carried on
            return None
        more = trial.over(read | {one.target: times(trial, one.target, by)})
        if not more.judge(one).passed:
            return None
        read[one.target], other = more.dumped[one.target], more
    return read if telling and taken == read.keys() else None


def times(trial: Trial, number: int, by: float | np.ndarray) -> np.ndarray:
    """Return the port's value, multiplied where it is its own."""
    port = trial.dumped[number]
    value = (port.astype(np.float64) * by).astype(port.dtype)
    if number not in trial.unseen:
        return value
    return np.where(trial.marked(number, value), port, value)
