"""Sums that a port dumps before the stream is added: a convention, and no bug.

A hook on what attention or the MLP returns may go under the name of the sum. Whether the stream is
missing, or only comes later, is told by what the port computes next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lockstep.parity.explaining.conventions.readings import Values, takers_of
from lockstep.parity.explaining.dumped import Beside, on_disk
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Call, Evaluator, Value
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.metrics import difference, rms
from lockstep.parity.naming.grouping import grouped
from lockstep.parity.noise import ways
from lockstep.reference.precision import rounded

BEFORE = "{taps}: dumped before the stream is added; what follows takes the sum"
CLEAR = 2.0  # times as far from one of the two must the next value be


def read_added(trial: Trial) -> list[str]:
    """Add the stream to what was dumped without it, where what follows says so; return a line."""
    found = [call.taps[0] for call in sums(trial) if meant(trial, call)]
    return [BEFORE.format(taps=grouped(found))] if found else []


def sums(trial: Trial) -> Iterator[Call]:
    """Yield the dumped sums of the stream and a branch, from the first on."""
    for call in trial.graph.calls:
        is_sum = call.op == "add" and call.layer is not None and call.taps
        if is_sum and call.number in trial.dumped and trial.graph.judges(call.number):
            yield call


def meant(trial: Trial, call: Call) -> bool:
    """Read a value as the branch of its sum, if it is nearer to that, and what follows agrees."""
    number = call.number
    if not is_branch(trial, call):  # which costs less than to judge it
        return False
    if trial.judge(trial.graph.piece(number, trial.dumped)).passed:
        return False
    whole = with_stream(trial.centre(None), call, trial)
    if not follows(trial, {number: whole}, number):
        return False
    put(trial, number, [whole, *(with_stream(run, call, trial) for run in trial.ways(None))])
    return True


def put(trial: Trial, number: int, wholes: Sequence[np.ndarray]) -> None:
    """Put a sum in its branch's place, as the centre has it and as each way of rounding does."""
    trial.own = trial.own or [Beside(trial.dumped) for _ in ways(trial.dtype)]
    for values, whole in zip((trial.dumped, *trial.own), wholes, strict=False):
        values[number] = on_disk(whole)
    trial.remade.add(number)
    trial.forget()


@np.errstate(all="ignore")  # a broken port may hold anything
def is_branch(trial: Trial, call: Call) -> bool:
    """Say whether a value is nearer to the branch alone than to the sum."""
    run, value, number = trial.centre(None), trial.dumped[call.number], call.number
    branch, right = (run.target(number, one) for one in ({number: bare(call)}, None))
    if value.shape != right.shape:
        return False
    value, branch, right = (trial.proving(one, number) for one in (value, branch, right))
    return far(value, branch) < far(value, right)


@np.errstate(all="ignore")
def with_stream(run: Evaluator, call: Call, trial: Trial) -> np.ndarray:
    """Return the port's branch with the stream, as one way of rounding has it, in its dtype.

    Of tokens that are not the port's the value is a sum already.
    """
    ref, number = call.inputs[0], call.number
    assert isinstance(ref, Value)
    value = run.dumped[number]
    stream = run.given(ref.number)
    total = rounded(value.astype(np.float64) + stream, trial.dtype).astype(value.dtype)
    if number not in trial.unseen:
        return total
    return np.where(trial.marked(number, total), value, total)


def far(one: np.ndarray, other: np.ndarray) -> float:
    return rms(difference(one, other))


def bare(call: Call) -> Call:
    """Return a sum that hands on its branch."""
    return call.replaced(lambda ops, stream, branch: branch)


def follows(trial: Trial, whole: Values, number: int) -> bool:
    """Say whether the first value that the port computed next, and that tells, takes the sum."""
    other = trial.over(whole)
    for piece in takers_of(number, trial):
        raw, added = (nearest(piece, one) for one in (trial, other))
        if max(raw, added) > CLEAR * min(raw, added):
            return added < raw
    return False


def nearest(piece: Piece, trial: Trial) -> float:
    """Return how far a value is from what is right, or from its branch if it is a sum, which may be
    dumped alone too.
    """
    call = trial.graph.calls[piece.target]
    some = [{}, {call.number: bare(call)}] if call.op == "add" else [{}]
    return min(trial.look(piece, calls).raw(0, None) for calls in some)
