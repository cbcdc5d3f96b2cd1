"""Values that are off by one factor, or by a norm's gain, which what the port computes next undoes.

Ports fold a scale or a gain into the weights behind it, and scores are often those of a softmax
that counts in powers of 2. Whether a factor is a bug is told by what follows: it is right only if
made of the value without the factor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from lockstep.parity.explaining.case import Case, Progress
from lockstep.parity.explaining.conventions.dumped_late import is_near
from lockstep.parity.explaining.conventions.products import as_dumped, over, round_otherwise
from lockstep.parity.explaining.conventions.readings import LITTLE, Values, factor_of, takes
from lockstep.parity.explaining.conventions.rounded_when_stored import sort_again
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.faults.tensors import dense
from lockstep.parity.graph import Call, Tensor
from lockstep.parity.graph.graph import Piece
from lockstep.parity.naming.grouping import grouped

GAINS = ("rms_norm", "gain")  # operations that multiply features by a tensor
NEAR = 2**-6  # of a value, within which one is looked at more closely
STREAM = ("embedding", "scale", "add")
SCALED = "{taps}: {factor:.3g} times the right value, which what follows undoes"
GAINLESS = "{taps}: without the norm's gain, which what follows has in it"
WITHOUT = "{taps}: without {gain}, which what follows has in it"
WITH = "{taps}: with {gain} in it, by which what follows does not multiply again"


def sort_undone(case: Case, progress: Progress) -> list[str]:
    """Read what is wrong without its factor, where what follows says so; judge all again.

    Weights are folded in all layers alike: in some alone it is no convention.
    """
    calls, found = case.graph.calls, dict[str, list[str]]()
    products: dict[int, np.ndarray] = {}
    every = {piece.target: one for piece in case.wrong if (one := folded(case.trial, piece))}
    several = Counter(calls[number].place for number in every)
    judged = Counter(calls[number].place for number in case.judged)
    for number in sorted(every):
        said, read = every[number]
        if several[calls[number].place] == judged[calls[number].place]:
            products |= read
            own = [one for one in read if one == number or one not in every]
            found.setdefault(said, []).extend(calls[one].taps[0] for one in own)
    if found:
        case.trial.remade |= products.keys()
        case.trial.also = [*case.trial.also, *round_otherwise(case.trial, products)]
        case.trial.put(as_dumped(case.trial, products))
        case.trial.forget()
        sort_again(case, progress)
    return [said.format(taps=grouped(taps)) for said, taps in found.items()]


@np.errstate(all="ignore")  # a broken port may hold anything
def folded(trial: Trial, piece: Piece) -> tuple[str, Values] | None:
    """Return what to say of a piece, and how to read it and what carries its factor on."""
    if (values := comparable(trial, piece.target)) is None:
        return None
    port, right = values
    ways: list[tuple[str, float | np.ndarray]] = []
    if (inverse := inverse_of(trial, piece.target)) is not None:
        ways.append((SCALED.format(taps="{taps}", factor=1 / inverse), inverse))
    for said, by in (*ways, *gains_of(trial, piece)):
        meant = is_near(port.astype(np.float64) * by, right, NEAR)
        if meant and (read := undone(trial, {piece.target: by})):
            return said, read
    return None


def comparable(trial: Trial, number: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the port's value and the right one, if these have one shape and are no stream."""
    port, right = trial.dumped[number], trial.centre(None).target(number)
    return None if port.shape != right.shape or is_of_stream(trial, number) else (port, right)


def inverse_of(trial: Trial, number: int) -> float | None:
    """Return what to multiply a value by for it to be right, if that is one number."""
    if (values := comparable(trial, number)) is None:
        return None
    port, right = values
    factor = factor_of(*(trial.proving(one, number) for one in (port, right)))
    meant = is_near(port.astype(np.float64) / factor, right, NEAR)
    return 1 / factor if meant and abs(factor - 1) > LITTLE else None


def is_of_stream(trial: Trial, number: int) -> bool:
    """Say whether a value is the stream, or added to it: no factor can be folded into a sum."""
    calls = (trial.graph.calls[one] for one in trial.graph.consumers[number])
    return trial.graph.calls[number].op in STREAM or any(one.op == "add" for one in calls)


def gains_of(trial: Trial, piece: Piece) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what to say of a piece that lacks its gain, or has that of what comes next in it, and
    what to multiply it by.
    """
    call = trial.graph.calls[piece.target]
    if (own := gain_of(trial, call)) is not None:
        said = GAINLESS if call.op == "rms_norm" else WITHOUT
        yield said.format(taps="{taps}", gain=name_of(call)), own
    names, later = [], np.ones(1)
    while (call := only_taker(trial, call)) and (by := multiplier(trial, call)) is not None:
        names += [name_of(call)] if call.op == "gain" else []
        later = later * by
        if names and np.all(later):
            yield WITH.format(taps="{taps}", gain=" and ".join(names)), 1 / later


def only_taker(trial: Trial, call: Call) -> Call | None:
    """Return the one call that takes a value, if it is not dumped itself."""
    takers = trial.graph.consumers[call.number]
    alone = len(takers) == 1 and takers[0] not in trial.dumped
    return trial.graph.calls[takers[0]] if alone else None


def multiplier(trial: Trial, call: Call) -> float | np.ndarray | None:
    """Return what a call multiplies its input by, if it does nothing else."""
    if call.op == "scale":
        return call.options["by"]
    return gain_of(trial, call) if call.op == "gain" else None


def gain_of(trial: Trial, call: Call) -> np.ndarray | None:
    """Return what a call multiplies features by, None if it does not."""
    if call.op not in GAINS or not isinstance(ref := call.inputs[1], Tensor):
        return None
    gain = dense(trial.ops, trial.read(ref)).astype(np.float64)
    return gain if gain.size > 1 else None


def name_of(call: Call) -> str:
    """Return the last name of the gain of a call."""
    return (call.tensor(1) or "").removesuffix(".weight").rpartition(".")[2]


def undone(trial: Trial, factors: Mapping[int, float | np.ndarray]) -> Values | None:
    """Return values multiplied by what makes them right, if all that is made of them is.

    What has the same factor again carries it on; or another value has a factor of its own, and what
    is made of both undoes both. Something must be wrong with the values as they are.
    """
    read = {number: times(trial, number, by) for number, by in factors.items()}
    other, (by, *_) = over(trial, read), factors.values()
    if not all(other.judge(trial.graph.piece(one, trial.dumped)).passed for one in read):
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
        if len(factors) == 1 and (more := beside(trial, one, read)):
            return undone(trial, {**factors, **more})
        more = over(trial, read | {one.target: times(trial, one.target, by)})
        if len(factors) > 1 or not more.judge(one).passed:
            return None
        read[one.target], other = times(trial, one.target, by), more
    return read if telling and taken == read.keys() else None


def beside(trial: Trial, piece: Piece, known: Collection[int]) -> dict[int, float]:
    """Return the other values that a piece is made of, and that are wrong by a factor."""
    taken = set().union(*map(trial.graph.sources, piece.calls)) & {*trial.dumped} - {*known}
    inverses = {one: inverse_of(trial, one) for one in taken if trial.graph.judges(one)}
    return {number: by for number, by in sorted(inverses.items()) if by is not None}


def times(trial: Trial, number: int, by: float | np.ndarray) -> np.ndarray:
    """Return the port's value in float64, multiplied where it is its own."""
    port = trial.dumped[number].astype(np.float64)
    if number not in trial.unseen:
        return port * by
    return np.where(trial.marked(number, port), port, port * by)
