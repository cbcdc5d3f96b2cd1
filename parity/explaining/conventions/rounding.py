"""Which convention of rounding a port follows, found by whose bits its own are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np

from lockstep.parity.explaining.searching.look import MOST_UNSURE
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.evaluator import KEPT, Rewritten
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable
from lockstep.parity.noise import namespace, of_port
from lockstep.parity.noise.conventions import SUMS, Choice, choices
from lockstep.reference.precision import rounded


def bits(run: Evaluator, piece: Piece, calls: Rewritten, dtype: np.dtype) -> np.ndarray:
    """Return a value as a convention computes it, in the port's dtype."""
    with np.errstate(all="ignore"):
        return rounded(run.target(piece.target, calls), dtype)


def convention_of(
    trial: Trial, pieces: Sequence[tuple[Piece, Rewritten]]
) -> tuple[Evaluator, float]:
    """Return the convention that gives most of the port's bits in some like pieces, and how many.

    Votes ask it of the same calls again and again, so that it is found out once.
    """
    key = tuple((piece.target, frozenset(map(id, calls.values()))) for piece, calls in pieces)
    if key not in trial.kept.followed:
        trial.kept.followed[key] = *settled(trial, pieces), pieces
    taken, share, _ = trial.kept.followed[key]
    return evaluator(trial, taken), share


def settled(
    trial: Trial, pieces: Sequence[tuple[Piece, Rewritten]]
) -> tuple[tuple[int, ...], float]:
    """Return which choices give most of the port's bits, and how many.

    Each operation's choice is settled in turn, so that the cost is that of their sum. Since a
    choice may show beside another one alone, it goes round until none has changed since its last
    turn, or every bit is the port's. What was tried once is not tried again.
    """
    every = choices(trial.dtype)
    open_to = [place for place, choice in enumerate(every) if concerns(choice, trial, pieces)]
    taken = (0,) * len(every)
    share, turns = agreement(evaluator(trial, taken), trial, pieces), 0
    seen: set[tuple[int, ...]] = {taken}
    for place in cycle(open_to):
        if share >= 1 or turns == len(open_to):
            break
        before = share
        for other in range(len(every[place])):
            tried = (*taken[:place], other, *taken[place + 1 :])
            if tried in seen:
                continue
            seen.add(tried)
            found = agreement(evaluator(trial, tried), trial, pieces)
            if found > share:
                share, taken = found, tried
        turns = 1 if share > before else turns + 1
    return taken, share


def concerns(choice: Choice, trial: Trial, pieces: Sequence[tuple[Piece, Rewritten]]) -> bool:
    """Say whether any operation of a choice is in the pieces."""
    names = {name for one in choice for name in one}
    return any(trial.graph.calls[n].op in names for piece, _ in pieces for n in piece.calls)


def evaluator(trial: Trial, taken: tuple[int, ...]) -> Evaluator:
    """Return the way of computing that makes these choices: one for all bugs, so that each costs no
    more than what lies behind it. Those that were asked for last are kept.
    """
    known = trial.kept.conventions
    if taken not in known:
        known[taken] = made(trial, taken)
    known.move_to_end(taken)
    while len(known) > 1 and sum(one.size for one in known.values()) > KEPT:
        known.popitem(last=False)
    return known[taken]


def made(trial: Trial, taken: tuple[int, ...]) -> Evaluator:
    parts = (choice[place] for choice, place in zip(choices(trial.dtype), taken, strict=True))
    changed = SUMS | {name: op for part in parts for name, op in part.items()}
    return trial.evaluator(of_port(namespace(changed), trial.dtype), trial.dtype, None)


def agreement(run: Evaluator, trial: Trial, pieces: Sequence[tuple[Piece, Rewritten]]) -> float:
    """Return the share of the port's values that a convention gives to the bit, of the tokens that
    show how it rounds.
    """
    same = [given(run, trial, piece, calls) for piece, calls in pieces]
    return float(np.mean(np.concatenate(same)))


def given(run: Evaluator, trial: Trial, piece: Piece, calls: Rewritten) -> np.ndarray:
    """Say of each value of such tokens whether a convention gives it; of none, where it cannot be
    computed.
    """
    port = trial.port(piece.target)
    with if_computable():
        found = bits(run, piece, calls, trial.dtype) == port
        return found[np.broadcast_to(telling(trial, piece, calls), found.shape)]
    return np.zeros(port.size, bool)


def telling(trial: Trial, piece: Piece, calls: Rewritten) -> np.ndarray:
    """Return which tokens show how a port rounds, in a shape that fits the piece's value: those
    that rounding may send to no other expert. All do where most may be sent elsewhere.
    """
    key = piece.target, frozenset(map(id, calls.values()))
    if key not in trial.kept.telling:
        with np.errstate(all="ignore"):  # a broken port may hold anything
            unsure = trial.unsure(piece, calls)
        found = np.True_
        if unsure is not None and unsure.mean() <= MOST_UNSURE:
            found = ~trial.graph.along_tokens(unsure, piece.target)
        trial.kept.telling[key] = np.asarray(found), calls
    return trial.kept.telling[key][0]
