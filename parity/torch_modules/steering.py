"""Find the choices that a port's routers made, where rounding may turn any of them.

A tap that is wrong may only have taken another expert than the float64 replay, one as good. Its
tokens are looked at in order: one that is off is tried with one near choice after another turned. A
choice is the port's if the token is right with it. What `parity.explaining.steering` does over the
graph of a reference is done here by running the model again, all taps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lockstep.parity.explaining.routing.steering import BETTER, FAR, LOST, OFF
from lockstep.parity.judging.judge import row_noise, row_rms
from lockstep.parity.judging.metrics import difference
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import step_of
from lockstep.parity.torch_modules.casting import held_exactly
from lockstep.parity.torch_modules.choices import Choice, reach
from lockstep.parity.torch_modules.replays import Replayed, Replays, Run
from lockstep.parity.torch_modules.survey import Survey
from lockstep.parity.torch_modules.turns import Turns, turned_by_ways
from lockstep.reference.precision import dtype_named

MOST = 100  # runs of the model in search of choices
Turned = dict[tuple[int, int], np.ndarray]  # as `choices.Wanted`


@dataclass
class Piece:
    """A tap, and the choices between it and the port's values that it is made from.

    `reach` says how far apart two scores may be for either to be chosen, by number and row; `noise`
    how far rounding moves each token, (L,).
    """

    tap: str
    port: np.ndarray
    tokens: int
    reach: Mapping[int, np.ndarray]
    noise: np.ndarray
    turned: Turned = field(default_factory=dict)  # the port's choices, as far as they are found

    def errors(self, run: Run) -> np.ndarray:
        """Return how far the port is off with a run's choices, token by token, in noises."""
        own = row_rms(by_token(difference(self.port, run.read(self.tap)), self.tokens))[:, 0]
        return np.where(np.isnan(own), np.inf, own) / self.noise

    def turns(self, token: int, run: Run) -> list[Turned]:
        """Return the choices of a token with one expert exchanged for a near one, nearest first."""
        found: list[tuple[float, Turned]] = []
        for number, allowed in self.reach.items():
            choice = run.choices[number]
            scores, chosen = choice.scores[token], choice.chosen()[token]
            for out in np.flatnonzero(chosen):
                for into in np.flatnonzero(~chosen):
                    apart = scores[out] - scores[into]
                    if apart <= allowed[token]:
                        columns = np.append(choice.picked[token][choice.picked[token] != out], into)
                        found.append((float(apart), {(number, token): columns}))
        return [turned for _, turned in sorted(found, key=lambda one: one[0])]


def steered(
    replays: Replays, replay: Replayed, port: Alignment, found: Survey, wrong: Collection[str]
) -> tuple[Replayed, Turns]:
    """Replay again with the choices that the port made, and say how many that turns.

    `wrong` are the taps that are wrong with the model's own choices. More choices than rounding
    turns are no rounding, and explain nothing.
    """
    pieces = list(pieces_of(replay, port, found, wrong, replays.model.dtype))
    if not pieces:
        return replay, Turns()
    runs, count = iter(range(MOST)), 0

    def run(turned: Turned) -> Run | None:
        nonlocal count
        count += 1
        return None if next(runs, None) is None else replays.centre(turned)

    with held_exactly(replays.model.module):
        turned = settled(pieces, replay.centre, run)
        numbers = {number for piece in pieces for number in piece.reach}
        turns = Turns(len(turned), turned_by_ways(replay, numbers), MOST if count > MOST else 0)
        centre = replays.centre(turned if turns.legal else None)
    return Replayed(replay.truth, centre, replays.ways(centre)), turns


def pieces_of(
    replay: Replayed, port: Alignment, found: Survey, wrong: Collection[str], dtype: str
) -> Iterator[Piece]:
    """Yield the wrong taps that near choices may have made so, in the order of computation."""
    ways = [way.choices for way in replay.ways.values()]
    for name in found.shapes:
        tokens = len(found.fed[step_of(name)])
        centre = replay.centre.read(name) if name in wrong else np.empty(0)
        if centre.size == 0 or centre.size % tokens:
            continue
        value = port.read(name, centre.shape)
        if value.shape != centre.shape or value.dtype.kind in "iubc":
            continue
        between = {number: replay.centre.choices[number]
                   for number in found.choices(name, port.names)
                   if of_tokens(replay.centre.choices.get(number), tokens)}  # fmt: skip
        allowed = {number: reach(choice, of_ways(number, ways), dtype,
                                 told=found.logits_told(number, port.names))
                   for number, choice in between.items()}  # fmt: skip
        noise = noise_of(name, replay, centre, tokens, dtype)
        if allowed:
            yield Piece(name, value, tokens, allowed, noise)


def of_ways(number: int, ways: Iterable[Mapping[int, Choice]]) -> list[Choice]:
    return [way[number] for way in ways if number in way]


def of_tokens(choice: Choice | None, tokens: int) -> bool:
    """Say whether a choice was made once for each token."""
    return choice is not None and len(choice.picked) == tokens


def noise_of(
    name: str, replay: Replayed, centre: np.ndarray, tokens: int, dtype: str
) -> np.ndarray:
    errors = [by_token(difference(way.read(name), centre), tokens) for way in replay.ways.values()]
    right = by_token(centre, tokens)
    return row_noise(errors, right, dtype_named(dtype))[:, 0]


def by_token(x: np.ndarray, tokens: int) -> np.ndarray:
    """Return all that a tap says of each token, (L, N)."""
    return x.reshape(tokens, -1)


def settled(pieces: Sequence[Piece], first: Run, run: Callable[[Turned], Run | None]) -> Turned:
    """Return the choices that the port made and float64 would not.

    Pieces that share no choice are searched together, a run for all of them. A search that is cut
    short keeps what it found.
    """
    for some in waves(pieces):
        before = kept(pieces)
        start = run(before) if before else first
        searches = [Searching(searched(piece, start)) for piece in some if start is not None]
        while not all(search.done for search in searches):
            tried = before | together(search.proposal for search in searches)
            if (seen := run(tried)) is None:
                return kept(pieces)
            for search in searches:
                search.advance(seen)
    return kept(pieces)


def kept(pieces: Sequence[Piece]) -> Turned:
    return together(piece.turned for piece in pieces)


def together(some: Iterable[Turned]) -> Turned:
    return {key: columns for turned in some for key, columns in turned.items()}


def waves(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Part pieces so that each comes after all that share a choice with it and are made earlier."""
    made: list[list[Piece]] = []
    for piece in pieces:
        shared = [
            number for number, some in enumerate(made)
            if any(piece.reach.keys() & one.reach.keys() for one in some)
        ]  # fmt: skip
        level = max(shared, default=-1) + 1
        made += [[]] * (level == len(made))
        made[level] = [*made[level], piece]
    return made


class Searching:
    """A search that waits for the run of what it proposes; once done, it proposes what it kept."""

    def __init__(self, steps: Generator[Turned, Run, Turned]):
        self.steps, self.done = steps, False
        self.follow(lambda: next(steps))

    def advance(self, seen: Run) -> None:
        if not self.done:
            self.follow(lambda: self.steps.send(seen))

    def follow(self, step: Callable[[], Turned]) -> None:
        try:
            self.proposal = step()
        except StopIteration as end:
            self.proposal, self.done = end.value, True


def searched(piece: Piece, run: Run) -> Generator[Turned, Run, Turned]:
    """Yield choices to try for the tokens that are off, and learn from the run of each.

    The first such token tries all of its own, for nothing later reaches it. The others try theirs
    beside it; what makes one right counts in the run in which the first is right, too, or once that
    is given up, for they are made from it. Returns the choices that are the port's.
    """
    given_up: set[int] = set()
    errors = piece.errors(run)
    while off := [int(one) for one in np.flatnonzero(errors > OFF) if int(one) not in given_up]:
        first, queues = off[0], {token: piece.turns(token, run) for token in off}
        best, found = (BETTER * errors[first], Turned()), dict[int, Turned]()
        while queues[first]:
            tried = {token: queue.pop(0) for token, queue in queues.items() if queue}
            then = piece.errors((yield piece.turned | together(tried.values())))
            right = (then <= OFF) & (then < BETTER * errors)
            hits = {token: one for token, one in tried.items() if right[token]}
            if first in hits:
                found = hits
                break
            found = hits | found
            best = min(best, (then[first], tried[first]), key=lambda one: one[0])
        if first not in found and best[1]:
            found = {first: best[1]}
        changed = bool(found)
        if first not in found:
            given_up.add(first)
            changed |= errors[first] > FAR and dropped(piece, first)
            if sum(errors[token] > FAR for token in given_up) > 1 + LOST * first:
                break
        if changed:
            piece.turned |= together(found.values())
            run = yield piece.turned
            errors = piece.errors(run)
    return piece.turned


def dropped(piece: Piece, token: int) -> bool:
    """Forget what made a token better, but not right; say whether there was any."""
    before = len(piece.turned)
    piece.turned = {key: one for key, one in piece.turned.items() if key[1] != token}
    return len(piece.turned) < before
