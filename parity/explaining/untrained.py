"""Projections whose weights were never loaded: random numbers, as a library makes a module.

No formula predicts them, but their size is known. What a port computes from inputs that are known
shows its matrix in the directions of these inputs: whether it has anything to do with the right
one, and how large its numbers are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.diagnosis import Named
from lockstep.parity.graph import Call
from lockstep.parity.graph.call import Value
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

DROPPED, HEAD = "strict-false-drops-tensors", "tied-head-mishandled"
USUAL = 0.02  # `initializer_range` of nearly every config
STEEP = 0.03  # of the longest direction of the inputs: shorter ones are rounding
ERRORS = 4.0  # standard errors that a sample may be off
CLOSEST = 0.25  # that tolerance at its widest: below it, too little is seen


@dataclass(frozen=True)
class Sample:
    """The matrices of a projection, the port's and the right one, as far as its inputs see them."""

    port: np.ndarray
    right: np.ndarray
    inputs: int

    @property
    def tolerance(self) -> float:
        return 0.02 + ERRORS / math.sqrt(2 * max(self.port.size, 1))

    @property
    @np.errstate(all="ignore")  # its numbers may be too large to be squared
    def size(self) -> float | None:
        """Return the deviation of fresh random numbers that the port's are like, if any."""
        sizes = USUAL, 1 / math.sqrt(3 * self.inputs)  # of transformers, of torch
        found, own = (float(np.sqrt(np.mean(one**2))) for one in (self.port, self.right))
        product = float(np.sum(self.port * self.right))
        alike = abs(product) / (self.port.size * found * own or math.inf)
        if self.tolerance > CLOSEST or not alike <= ERRORS / math.sqrt(self.port.size):
            return None
        for size in sizes:
            if abs(found / size - 1) <= self.tolerance < abs(own / size - 1) / 2:
                return size
        return None


def untrained(case: Case) -> Iterator[tuple[Piece, Named]]:
    """Yield the wrong pieces that are a projection by fresh random numbers, and what to say."""
    entries = {one.id: one.fault for one in case.hypotheses}
    for piece in case.wrong:
        call = case.graph.calls[piece.target]
        fault = entries.get(HEAD if call.place == "lm_head" else DROPPED)
        sample = sampled(call, case) if call.op == "linear" and fault else None
        if sample is None or fault is None or sample.size is None:
            continue
        judged = case.judged[piece.target]
        yield (
            piece,
            Named(
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
            ),
        )


@np.errstate(all="ignore")  # a broken port may hold anything
def sampled(call: Call, case: Case) -> Sample | None:
    """Solve for the matrices in the directions that the inputs have."""
    ref, run = call.inputs[0], case.trial.centre(None)
    if not isinstance(ref, Value):
        return None
    x = run.port(ref.number) if ref.number in case.dumped else run.target(ref.number)
    rest = run.target(call.number, {call.number: call.with_changed(1, nought)})  # its bias
    port = case.dumped[call.number].astype(np.float64) - rest
    right = run.target(call.number) - rest
    x, port, right = (value.reshape(-1, value.shape[-1]) for value in (x, port, right))
    if not all(np.isfinite(value).all() for value in (x, port, right)):
        return None
    left, lengths, _ = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    kept = lengths > STEEP * lengths[0]
    left, lengths = left[:, kept], lengths[kept]
    return Sample(*(left.T @ value / lengths[:, None] for value in (port, right)), x.shape[-1])


def nought(ops: object, weight: object) -> np.ndarray:
    return np.zeros(weight.shape, np.float32)  # pyright: ignore[reportAttributeAccessIssue]
