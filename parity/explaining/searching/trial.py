"""Hold a port's value against what a hypothesis would have made of the port's own inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.parity.explaining.searching.judging import Judging
from lockstep.parity.explaining.searching.look import Look, nowhere
from lockstep.parity.explaining.searching.no_numbers import with_noughts
from lockstep.parity.graph.batched import at_once
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable
from lockstep.parity.judging.judge import EPSILONS

STEPS = 64  # of the least number above nought, that rounding may take a sum next to nought
# The least number above nought.
SUBNORMAL = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "bfloat16": 2.0**-133,
    "float16": 2.0**-24,
}


@dataclass
class Trial(Judging):
    """A dump whose pieces are judged in full, and looked at roughly: thousands of times."""

    @np.errstate(all="ignore")
    def looks(self, piece: Piece, some: Sequence[Rewritten], rows: int | None) -> list[Look]:
        """Look at several hypotheses: in a small model they are computed together."""
        values = at_once(self.centre(rows), piece.target, some)
        pairs = zip(some, values, strict=True)
        return [self.look(piece, calls, rows, wrong=wrong) for calls, wrong in pairs]

    @np.errstate(all="ignore")
    def look(
        self,
        piece: Piece,
        calls: Rewritten,
        rows: int | None = None,
        *,
        wrong: np.ndarray | None = None,
    ) -> Look:
        """Return roughly how far the port is from a hypothesis: the centre alone is computed.

        `wrong` is the hypothesis's value where that is known. `rows` says how many tokens are
        computed, None all. Raises nothing: what cannot be computed in this model moves nothing.
        """
        self.count += 1
        right = self.centre(rows).target(piece.target)
        if wrong is None:
            wrong = right
            with if_computable():
                wrong = self.centre(rows).target(piece.target, calls)
        port, noise = self.port(piece.target, rows), self.relative_noise(piece, rows)
        if wrong.shape != port.shape:
            return nowhere(right.shape[self.graph.token_axes[piece.target][0]])
        if piece.target in self.unseen:
            mark = self.marked(piece.target, right)
            port, wrong = (np.where(mark, right, value) for value in (port, wrong))
        port, wrong, right = (self.tokens(value, piece.target) for value in (port, wrong, right))
        (port, wrong, right), made = with_noughts(port, wrong, right)
        if least := self.least_step(piece.target):
            port = np.where(np.abs(port - wrong) <= STEPS * least, wrong, port)
        careful = not self.routers_of(piece)
        return Look.of(port, wrong, right, noise, careful=careful, made=made)

    def least_step(self, target: int) -> float:
        """Return the least difference of two of the port's numbers, where all of them are too small
        to be held with all their bits; 0 if any is larger.

        What is within a few is in the noise, but the quick measure has that as a share of a value.
        """
        if target not in self.kept.faint:
            least, epsilon = SUBNORMAL[self.dtype.name], EPSILONS[self.dtype.name]
            largest = float(np.max(np.abs(self.port(target)), initial=0.0))
            self.kept.faint[target] = least if largest < least / epsilon else 0.0
        return self.kept.faint[target]
