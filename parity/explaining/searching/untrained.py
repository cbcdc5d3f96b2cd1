"""Projections whose weights were never loaded: random numbers, as a library makes a module.

No formula predicts them, but their size is known. What a port computes from inputs that are known
shows its matrix in the directions of these inputs: whether it has anything to do with the right
one, and how large its numbers are. Inside of a piece, what lies behind it is undone first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lockstep.parity.explaining.like_pieces import mostly_open
from lockstep.parity.explaining.said.diagnosis import Named
from lockstep.parity.explaining.searching.directions import Inputs, agreeing
from lockstep.parity.explaining.searching.segments import bottlenecks
from lockstep.parity.explaining.searching.undone import undone
from lockstep.parity.explaining.searching.undone_in_turn import InTurn
from lockstep.parity.graph import Call, Graph
from lockstep.parity.graph.call import Value
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.metrics import rms

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

DROPPED, HEAD = "strict-false-drops-tensors", "tied-head-mishandled"
USUAL = 0.02  # `initializer_range` of nearly every config
CLEAR = 4.0  # times the noise, that numbers of the usual size must make in a direction
FARTHEST = 1.6  # times what a projection by random numbers mostly makes of its inputs' size
ERRORS = 4.0  # standard errors that a sample may be off
CLOSEST = 0.25  # that tolerance at its widest: below it, too little is seen


@dataclass(frozen=True)
class Sample:
    """The matrices of a projection, the port's and the right one, as far as its inputs see them.

    `left` is the share of the port's output that no matrix makes of these inputs.
    """

    port: np.ndarray
    right: np.ndarray
    inputs: int
    left: float = 0.0

    @property
    def tolerance(self) -> float:
        return 0.02 + ERRORS / math.sqrt(2 * max(self.port.size, 1))

    @property
    @np.errstate(all="ignore")  # its numbers may be too large to be squared
    def size(self) -> float | None:
        """Return the deviation of fresh random numbers that the port's are like, if any."""
        if self.tolerance > CLOSEST:
            return None
        found, own = (float(np.sqrt(np.mean(one**2))) for one in (self.port, self.right))
        product = float(np.sum(self.port * self.right))
        alike = abs(product) / (self.port.size * found * own or math.inf)
        if not alike <= ERRORS / math.sqrt(self.port.size) or not self.even(found):
            return None
        for size in sizes(self.inputs):
            if abs(found / size - 1) <= self.tolerance < abs(own / size - 1) / 2:
                return size
        return None

    def even(self, size: float) -> bool:
        """Say whether the port's numbers are as large in each direction of the inputs.

        Of inputs that the port did not have they are not: what is divided by a short one grows.
        """
        rows = np.sqrt(np.mean(self.port**2, axis=-1))
        most = 0.02 + ERRORS / math.sqrt(2 * self.port.shape[-1])
        return bool(np.all(np.abs(rows / size - 1) <= most))


class Random(NamedTuple):
    """A wrong piece that was read as a projection by fresh random numbers, and what to say.

    `seen` says whether the projection's output is in the dump, and what it was made of.
    """

    piece: Piece
    named: Named
    seen: bool


def untrained(case: Case) -> Iterator[Random]:
    """Yield the wrong pieces that are a projection by fresh random numbers, or hold one."""
    for piece in case.wrong:
        found = (
            Random(piece, one, piece.calls == (call.number,))
            for call, sample in samples(piece, case)
            if (one := of_random_numbers(call, case, sample, piece)) is not None
        )
        one = next(found, None)
        if one is not None:
            yield one


def projection(piece: Piece, graph: Graph) -> Call | None:
    """Return the projection whose output a piece ends with, if it does: beside that of an adapter,
    or as it is.
    """
    target = graph.calls[piece.target]
    ref = target.inputs[0]
    if target.op == "add_lora" and isinstance(ref, Value) and ref.number in piece.calls:
        target = graph.calls[ref.number]
    return target if target.op == "linear" else None


def doubtful(found: list[Random], case: Case) -> list[Random]:
    """Return those whose projection is inside a piece, where most like pieces have no explanation.

    What nobody knows, and all layers have, may look like random numbers in one of them.
    """
    alone = mostly_open(case)
    return [one for one in found if not one.seen and alone(one.piece)]


def samples(piece: Piece, case: Case) -> Iterator[tuple[Call, Sample]]:
    """Yield the projections of a piece whose output the port shows, and what their inputs show."""
    target = case.graph.calls[piece.target]
    if target.op == "linear":
        sample = sampled(target, case, case.dumped[piece.target])
        if sample is not None:
            yield target, sample
    if target.op != "linear" or case.graph.several(piece):
        yield from inner_samples(piece, case)


def inner_samples(
    piece: Piece, case: Case, beside: Rewritten | None = None
) -> Iterator[tuple[Call, Sample]]:
    """Yield the projections that are a bottleneck or added to one, whose value the port gives away,
    `beside` calls that are wrong in any case.

    A head is one, if its logits are bounded before they are dumped.
    """
    # As one layer first: what all layers share counts as the first one's, and is not led through.
    ways: list[InTurn | None] = [None] if case.graph.calls[piece.target].op != "linear" else []
    if case.graph.several(piece):
        ways.append(InTurn(case.trial, piece))
    cuts = bottlenecks(piece, case.graph, case.dumped)
    for cut in cuts:
        if adds(case.graph, cuts, cut):  # the sum right behind it says the same
            continue
        added = [case.graph.calls[one] for one in case.graph.sources(cut) if one in piece.calls]
        calls = [one for one in added if one.op == "linear"]
        last = case.graph.calls[cut]
        here = {"add": calls, "add_lora": calls, "linear": [last] if cut != piece.target else []}
        for call, in_turn in product(here.get(last.op, ()), ways):
            found = shown(case, piece, cut, call, in_turn, beside)
            if found is None:
                continue
            noise = noise_of(piece, case, *(found if in_turn else ()))
            sample = sampled(call, case, *found, noise=noise, cut=cut, beside=beside)
            if sample is not None:
                yield call, sample


def adds(graph: Graph, cuts: Sequence[int], cut: int) -> bool:
    """Say whether a projection is nothing but a part of the sum that is the next of the cuts."""
    then = next((one for one in cuts if one > cut), cut)
    sums = graph.calls[cut].op == "linear" and graph.calls[then].op in ("add", "add_lora")
    return sums and cut in graph.sources(then)


@np.errstate(all="ignore")  # of broken inputs it may be anything
def noise_of(
    piece: Piece, case: Case, value: np.ndarray | None = None, known: np.ndarray | None = None
) -> float:
    """Return what rounding moves each number of a piece by, or of a `value` layers before its end,
    of the tokens (B T,) that are `known`.
    """
    run = case.trial.centre(None)
    rows = None if value is None else value.reshape(-1, value.shape[-1])
    given = run.target(piece.target) if rows is None else rows[known]
    return case.judged[piece.target].noise * rms(given)


@np.errstate(all="ignore")
def shown(
    case: Case,
    piece: Piece,
    cut: int,
    call: Call,
    in_turn: InTurn | None,
    beside: Rewritten | None = None,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return what the port has of a value in a piece, and of which tokens (B T,) that is known.

    A piece of several layers is led back `in_turn`. Fresh random numbers are small, so it is looked
    for near to what it is without the projection.
    """
    if cut == piece.target:
        value = case.dumped[cut]
        unseen = case.trial.unseen.get(cut, np.zeros(value.shape[:-1], bool))
        return value, ~unseen.ravel()
    wrong = {**(beside or {})}
    here = {call.number: wrong.get(call.number, call).with_changed(1, nought)}
    without = case.trial.centre(None).target(cut, wrong | here)
    if in_turn is not None:
        return in_turn.undone(cut, without, farthest(call, case))
    return undone(case.trial, piece, cut, without, beside)


@np.errstate(all="ignore")
def farthest(call: Call, case: Case) -> np.ndarray:
    """Return how long an output of fresh random numbers may be, for each token (T,)."""
    ref = call.inputs[0]
    if not isinstance(ref, Value):
        return np.zeros(0)
    run, known = case.trial.centre(None), ref.number in case.dumped
    x = run.port(ref.number) if known else run.target(ref.number)
    outputs = case.graph.shapes[call.number][-1]
    usual = max(sizes(x.shape[-1])) * math.sqrt(outputs)
    return FARTHEST * usual * np.linalg.norm(x.reshape(-1, x.shape[-1]), axis=-1)


def of_random_numbers(call: Call, case: Case, sample: Sample, piece: Piece) -> Named | None:
    """Return the bug, where what the inputs of a projection show are fresh random numbers."""
    wanted = HEAD if call.place == "lm_head" else DROPPED
    fault = next((one.fault for one in case.hypotheses if one.id == wanted), None)
    if fault is None or sample.size is None:
        return None
    judged = case.judged[piece.target]
    return Named(
        id=fault.id,
        variant=f"never loaded: random numbers of deviation {sample.size:.3g}",
        taps=[case.tap(piece)],
        layers=[] if call.layer is None else [call.layer],
        confidence=0.99,
        residual_before=judged.own_error,
        residual_after=judged.own_error,  # nobody knows the numbers
        noise=judged.noise,
        runner_up=None,
        also_fits=[],
        fix=fault.fix,
        wrong=fault.wrong,
        right=fault.right,
    )


@np.errstate(all="ignore")  # a broken port may hold anything
def sampled(
    call: Call,
    case: Case,
    value: np.ndarray,
    known: np.ndarray | None = None,
    *,
    noise: float = 0.0,
    cut: int | None = None,
    beside: Rewritten | None = None,
) -> Sample | None:
    """Solve for the matrices in the directions that the inputs have, `beside` other wrong calls.

    `value` is what the port has of the projection, or of `cut`, a sum that it is a part of, for the
    tokens (B T,) that are `known`; `noise` is what rounding may have moved each of its numbers by.
    """
    ref, run = call.inputs[0], case.trial.centre(None)
    if not isinstance(ref, Value):
        return None
    end = call.number if cut is None else cut
    wrong = {**(beside or {})}
    x = run.given(ref.number, wrong)
    without = wrong.get(call.number, call).with_changed(1, nought)
    rest = run.target(end, {**wrong, call.number: without})  # its bias, what is added
    port, right = value.astype(np.float64) - rest, run.target(end, wrong) - rest
    kept = slice(None) if known is None else known
    x, port, right = (one.reshape(-1, one.shape[-1])[kept] for one in (x, port, right))
    if not all(np.isfinite(one).all() for one in (x, port, right)):
        return None
    if cut is not None:
        kept = usual(port, x)
        x, port, right = x[kept], port[kept], right[kept]
    least = CLEAR * noise / min(sizes(x.shape[-1]))
    if beside and cut is not None:
        kept = agreeing(x, port, least)
        x, port, right = x[kept], port[kept], right[kept]
    inputs = Inputs.of(x, least)
    if inputs is None or (beside and not inputs.make(port)):
        return None
    return Sample(inputs.matrix(port), inputs.matrix(right), x.shape[-1], inputs.left_over(port))


def usual(port: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the tokens (T,) that fresh random numbers make about as large as they do most.

    Where another one was found than the port had, it is mostly farther.
    """
    gains = np.linalg.norm(port, axis=-1) / np.linalg.norm(x, axis=-1)
    return gains <= FARTHEST * np.median(gains)


def sizes(inputs: int) -> tuple[float, float]:
    """Return the deviations of fresh random numbers: of transformers, of torch."""
    return USUAL, 1 / math.sqrt(3 * inputs)


def nought(ops: object, weight: object) -> np.ndarray:
    return np.zeros(weight.shape, np.float32)  # pyright: ignore[reportAttributeAccessIssue]
