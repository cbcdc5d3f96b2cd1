"""What attention makes in a dump of some tokens, judged in the whole text.

The keys and values of the other tokens are the oracle's own. So as long as nothing is wrong before
them a bug of attention shows as in any dump; where something is, nobody knows what the port had.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from lockstep.parity.cli.output import counted
from lockstep.parity.excerpts.oracle import BY_TOKEN, OF_ALL
from lockstep.parity.explaining.caches.taps import window_of, with_caches
from lockstep.parity.explaining.case import Case, Progress
from lockstep.parity.explaining.excerpts.caches import held_of_all
from lockstep.parity.explaining.excerpts.others import Others, Patched
from lockstep.parity.explaining.excerpts.reading import SomeRead, stands
from lockstep.parity.explaining.routing.flips import unsure_tokens
from lockstep.parity.explaining.said.diagnosis import Unexplained
from lockstep.parity.explaining.steps.steps import graph_of
from lockstep.parity.faults.fault import Fault
from lockstep.parity.graph import Evaluator, Graph, Value
from lockstep.parity.graph.by_queries import MAKE, at_once
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.judge import judge
from lockstep.parity.noise import ways
from lockstep.parity.noise.exact import FLOAT64, exact
from lockstep.reference.model import Model
from lockstep.reference.precision import dtype_named

LARGEST = 1 << 28  # bytes of the largest value in float64, such as logits of all tokens
ROUTER = "top_k_routing"
BEFORE = (
    "{count} {are} not decided, such as {first}: attention takes what the port has of tokens "
    "that are not in the dump, and {before} is {state} before it"
)
CACHES = ". With the caches in the dump (--taps '*,*.cached_*') attention can be told"
LONG = (
    "{count} {are} not decided, such as {first}: attention is computed again over all {tokens} "
    "tokens, and one value would take {size:.1f} GB. With fewer tokens in the prompt it can be told"
)
FARTHEST = 2  # times the largest number of a value, that other experts may bring it off
DOUBT = ", if it does not come from tokens that are not in the dump"
UNLIKE = "other numbers than {tap}, which is the same value"
TURNED = (
    "{count} {are} not decided, such as {first}: attention takes what the port has of tokens that "
    "are not in the dump, which a router may have sent to other experts by rounding alone"
)


def by_token(piece: Piece, graph: Graph) -> bool:
    """Say whether a piece works token by token, wherever these stand."""
    return all(graph.calls[number].op in BY_TOKEN for number in piece.calls)


def targets_of(graph: Graph, dumped: Collection[int], *, alone: bool) -> frozenset[int]:
    """Return the values whose pieces work token by token, or the others."""
    return frozenset(
        piece.target for piece in graph.pieces(dumped) if by_token(piece, graph) == alone
    )


class SomeCase(Case):
    """A dump of some tokens, as a text of these alone: what works token by token is judged."""

    def __init__(self, model: Model, read: SomeRead, dtype: str, faults: Sequence[Fault]):
        self.source, (self.of_all, sides) = read, held_of_all(read)
        super().__init__(model, read.graph, sides, dtype, faults)
        targets = targets_of(self.graph, self.dumped, alone=True)
        self.graph = self.trial.graph = replace(self.graph, targets=targets)
        self.trial.forget()

    def held(self) -> MutableMapping[int, np.ndarray]:
        """Read the values of these tokens, those in caches of all tokens too."""
        found = super().held()
        for number in self.of_all.keys() - found.keys():
            found[number] = gathered(self.of_all[number], self.graph, number, self.source)
        numbers = self.graph.taps
        used = {tap: name for tap, name in self.source.caches.items()
                if numbers.get(tap) in self.of_all}  # fmt: skip
        names = {**self.sides.names, **used}
        self.sides = replace(self.sides, names=names)
        return found


def gathered(value: np.ndarray, graph: Graph, number: int, read: SomeRead) -> np.ndarray:
    """Return the rows of these tokens of a value of the whole text."""
    axis = graph.token_axes[number][0]
    some = np.zeros(graph.shapes[number], value.dtype)
    for row, (here, there) in enumerate(read.places):
        np.moveaxis(some[row], axis - 1, 0)[here] = np.moveaxis(value[row], axis - 1, 0)[there]
    return some


class TextCase(Case):
    """The same dump in the whole text: what needs other tokens is judged, where it can be."""

    def __init__(self, some: SomeCase, faults: Sequence[Fault]):
        self.some, read, self.files = some, some.source, ExitStack()
        fed = read.whole
        graph = graph_of(some.model, fed, None if fed.pads is None else stands(fed))
        graph = with_caches(graph, read.caches)
        targets = targets_of(graph, some.dumped, alone=False) | some.of_all.keys()
        sides = replace(some.sides, last=frozenset(), beside={}, lengths=fed.lengths)
        self.hidden: dict[int, tuple[Piece, int]] = {}  # by its target, with what is wrong before
        self.doubtful: list[Piece] = []  # off by what a router may have done to other tokens
        super().__init__(some.model, replace(graph, targets=targets), sides, some.dtype, faults)
        numbers = graph.taps
        self.twins = {tap: x for tap, x in some.twins.items() if numbers[tap] not in some.judged}
        self.trial.own = [self.text_by(*way) for way in ways(self.trial.dtype)]
        self.trial.unseen = dict(self.trial.unseen) | {n: self.unseen(n) for n in self.numbers}
        if not some.of_all:  # what lies in the caches of all tokens is judged for each of them
            self.trial.seen = sorted({n for _, there in read.places for n in there.tolist()})
        self.trial.forget()

    def close(self) -> None:
        self.files.close()

    def values(self) -> Any:
        """Return what the text holds, by number: computed when it is asked for."""
        pieces = self.graph.pieces(self.some.dumped)
        taken = {n for one in pieces for call in one.calls for n in self.graph.sources(call)}
        made = taken & self.some.dumped.keys() | {one.target for one in pieces}
        self.numbers = sorted(made)
        shapes = (self.graph.shapes[call.number] for call in self.graph.calls if call.op in MAKE)
        long = any(at_once(shape) < shape[-2] for shape in shapes)
        # In a long text those that nothing right is made of are not made of other tokens.
        self.apart = frozenset(made - taken) if long else frozenset[int]()
        self.text = self.text_by(exact(self.model.ops, dtype_named(self.dtype)), FLOAT64)
        return self.text

    def text_by(self, ops: Any, dtype: np.dtype) -> Patched:
        """Return what the text holds, as the oracle computes the other tokens in one way."""
        known, numbers = self.some.of_all, {*self.numbers}
        layers = {n for tap, n in self.graph.taps.items() if tap.rpartition(".")[2].isdigit()}
        behind = max(numbers - self.apart, default=0)
        wanted = (numbers - self.apart) | {n for n in layers if n < behind}
        needed = sorted(wanted - known.keys())
        file = self.files.enter_context(TemporaryFile())  # noqa: SIM115 - `close` closes it
        run = Others(Evaluator(self.graph, ops, dtype, {}, self.read), needed, file)
        return Patched(self.numbers, self.some.dumped, known, run, self.graph.token_axes,
                       self.some.source.places, self.apart)  # fmt: skip

    def twin(self, tap: str) -> np.ndarray:
        return self.text.patched(self.graph.taps[tap], self.twins[tap])

    def not_alike(self) -> Iterator[Unexplained]:
        """Yield values that are in the dump twice, with other numbers, and were not judged."""
        for tap, value in self.twins.items():
            number = self.graph.taps[tap]
            other = self.some.dumped[number]
            found = judge(value, other.astype(np.float64), [other], self.trial.dtype)
            if number not in self.judged and not found.passed:
                said = UNLIKE.format(tap=self.tap(self.graph.piece(number, ())))
                yield Unexplained(self.sides.names[tap], found.own_error, found.noise, said)

    def unseen(self, number: int) -> np.ndarray:
        """Return the tokens (B, T) of a value that the dump does not have."""
        if number in self.some.of_all:
            pads = self.graph.pads
            return np.zeros(self.some.source.whole.tokens.shape, bool) if pads is None else pads
        found = np.ones(self.some.source.whole.tokens.shape, bool)
        mine = self.some.trial.unseen.get(number)
        for row, (here, there) in enumerate(self.some.source.places):
            found[row, there] = False if mine is None else np.broadcast_to(mine, (
                len(found), mine.shape[1]))[row, here]  # fmt: skip
        return found

    @property
    def size(self) -> int:
        """How many bytes the largest value takes that has to be computed as a whole, in float64."""
        needed = self.graph.needed(self.numbers, self.some.of_all)
        made = (number for number in needed if self.graph.calls[number].op not in MAKE)
        return max((8 * prod(self.graph.shapes[number]) for number in made), default=0)

    def decides(self, piece: Piece) -> bool:
        """Say whether nothing is wrong in what other tokens bring into a piece."""
        before = self.before(piece)
        wrong = sorted(one.target for one in (*self.some.wrong, *self.wrong))
        found = next((number for number in wrong if number in before), None)
        if found not in (None, piece.target):
            self.hidden[piece.target] = piece, found
        return found is None

    def keys(self, piece: Piece) -> set[int]:
        """Return the keys and values that a piece takes, but for those that the dump has of all."""
        calls = (self.graph.calls[number] for number in piece.calls)
        refs = [call.inputs[place] for call in calls for place in OF_ALL.get(call.op, ())]
        return {ref.number for ref in refs if isinstance(ref, Value)} - self.some.of_all.keys()

    def doubt(self, piece: Piece) -> str:
        return DOUBT if self.keys(piece) else ""

    def search(self, progress: Progress) -> None:
        """Explain what is wrong; what has no name and proves nothing is not judged."""
        super().search(progress)
        self.set_aside()

    def set_aside(self) -> None:
        found = [*filter(self.is_doubtful, self.open)]
        self.open = [piece for piece in self.open if piece not in found]
        self.doubtful += found
        for piece in found:
            del self.judged[piece.target]

    def is_doubtful(self, piece: Piece) -> bool:
        """Say whether nothing is off but tokens that look at such as a router may have turned, and
        these no farther than other experts could bring them.
        """
        turned, unseen = self.turned(piece), self.trial.unseen[piece.target]
        if not turned.any() or not self.is_near(piece, turned):
            return False
        if (turned | unseen).all():
            return True
        sure = self.trial.over({})
        sure.unseen = dict(sure.unseen) | {piece.target: unseen | turned}
        return sure.judge(piece).passed

    @np.errstate(all="ignore")  # a broken port may hold anything
    def is_near(self, piece: Piece, turned: np.ndarray) -> bool:
        """Say whether the port has numbers, which are off at some tokens by what is usual there.

        That is twice the largest number of the oracle's whole run: experts do not make larger ones.
        """
        target = piece.target
        axis = self.graph.token_axes[target][0]
        port = self.trial.port(target).astype(np.float64)
        off = np.abs(port - self.trial.centre(None).target(target))
        there = np.moveaxis(off, axis, 1)[turned]
        largest = np.abs(self.text.others.value(target)).max(initial=0.0)
        return self.trial.finite(target) and bool((there <= FARTHEST * largest).all())

    def before(self, piece: Piece) -> set[int]:
        """Return what the oracle computes of other tokens, for a piece to take or to equal."""
        if piece.target in self.some.of_all:
            return self.graph.needed([piece.target], ())
        return self.graph.needed(self.keys(piece), self.some.of_all)

    def turned(self, piece: Piece) -> np.ndarray:
        """Return the tokens (B, T) of the dump that look at others which rounding may have sent to
        other experts.
        """
        calls = [self.graph.calls[number] for number in sorted(self.before(piece))]
        routers = [call for call in calls if call.op == ROUTER]
        unsure = unsure_tokens(piece.target, routers, self.of_others, self.graph)
        absent = np.ones(self.some.source.whole.tokens.shape, bool)
        if unsure is None:
            return ~absent
        for row, (_, there) in enumerate(self.some.source.places):
            absent[row, there] = False
        absent &= True if self.graph.pads is None else ~self.graph.pads
        return looks_at(unsure & absent, self.window(piece)) & ~self.unseen(piece.target)

    def window(self, piece: Piece) -> int | None:
        """Return how many tokens a piece looks at, its own among them; None if at all before it."""
        calls = (self.graph.calls[number] for number in piece.calls)
        layers = {call.layer for call in calls if call.op in OF_ALL and call.layer is not None}
        windows = [window_of(layer, self.graph) for layer in layers]
        return None if None in windows else 1 + sum(one - 1 for one in windows if one)

    def of_others(self, number: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return a value of the oracle's own runs: in float64, and in each way of rounding."""
        centre, *spread = (one.others.value(number) for one in (self.text, *self.trial.own))
        return centre, spread

    @property
    def doubts(self) -> Iterator[str]:
        """What could not be decided."""
        if self.hidden:
            first = min(self.hidden)
            number = self.hidden[first][1]
            before = self.tap(self.graph.piece(number, ()))
            doubtful = any(piece.target == number for piece in self.doubtful)
            state = "not decided" if doubtful else "wrong"
            taps = [self.tap(piece) for _, (piece, _) in sorted(self.hidden.items())]
            yield said(BEFORE, taps, before=before, state=state) + CACHES * (not self.some.of_all)
        if self.doubtful:
            taps = [self.tap(piece) for piece in self.doubtful]
            yield said(TURNED, taps) + CACHES * (not self.some.of_all)


def undecided(case: TextCase, *, long: bool) -> list[str]:
    """Return the taps that lines say are not decided: all of them, if the text is too long."""
    pieces = [piece for _, (piece, _) in sorted(case.hidden.items())] + case.doubtful
    return [case.tap(one) for one in (case.graph.pieces(case.dumped) if long else pieces)]


def looks_at(some: np.ndarray, window: int | None) -> np.ndarray:
    """Return which tokens (B, T) look at some of these, by a window or at all before them."""
    count = np.cumsum(some, axis=-1)
    if window is not None:
        count[:, window:] -= count[:, :-window].copy()
    return count > 0


def said(reason: str, taps: Sequence[str], **more: object) -> str:
    are = "is" if len(taps) == 1 else "are"
    return reason.format(count=counted(len(taps), "tap"), first=taps[0], are=are, **more)


def too_long(case: TextCase) -> str | None:
    """Return a line if the whole text is too long to be computed, None if it is not."""
    if not case.numbers or case.size <= LARGEST:
        return None
    taps = [case.tap(piece) for piece in case.graph.pieces(case.dumped)]
    return said(LONG, taps, tokens=sum(case.sides.lengths), size=case.size / 1e9)
