"""Know numbered streams by the norms of the port that read them, where layer 0 has a bug already.

What a layer hands on is what the next one normalises, in a wrong port too: the rows of a stream,
brought to one size, are the rows of a norm but for a gain a feature. What is a stream but for a
factor is read so as well: so only names that are usual for streams are asked about, and only where
a norm of the first layers is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.parity.naming.align import MOVES, move_between
from lockstep.parity.naming.families import Shape
from lockstep.parity.naming.streams import ALONE, SAME, Streams, compared, finite, norm, real

FEW = 4  # tokens of which a gain and a bias a feature explain anything
BEFORE_ATTENTION = ("input_layernorm", "ln_1")
# The first that a model has: a norm of Gemma behind attention is called as Llama's before the MLP.
BEFORE_MLP = ("pre_feedforward_layernorm", "post_attention_layernorm", "ln_2")
MIDDLE = ".residual"


def by_reader(streams: Streams, known: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the tap of each name, and why; none if not one way alone fits what norms read.

    `known` has the names of taps that are known already, norms among them.
    """
    ways = (("", ()), ("", (streams.first.before,)), (MIDDLE, ()))
    several = [
        taps for part, before in ways if streams.may_be(taps := streams.wanted(part, before))
    ]
    readers = Readers(streams, known)
    far = [readers.off(taps) for taps in several]
    best, *others = sorted(far) or [np.inf]
    if best > SAME or any(other <= ALONE * best for other in others):
        return {}, ""
    taps = several[far.index(best)]
    if not readers.find_a_bug(taps):
        return {}, ""
    return streams.named(taps), "by the norms that read them"


@dataclass(frozen=True)
class Readers:
    """The norms of a dump beside a family that may be streams."""

    streams: Streams
    known: Mapping[str, str]

    def off(self, taps: Sequence[str]) -> float:
        """Return how far the streams are at most from what their norms read; inf if none is."""
        numbered = enumerate(map(self.reader, taps), self.streams.begin)
        far = [self.unread(number, one) for number, one in numbered if one and one in self.known]
        return max(far, default=np.inf)

    def find_a_bug(self, taps: Sequence[str]) -> bool:
        """Say whether a norm of the first layers is wrong, and what right ones read is right.

        What is no stream beside a right norm is none with a bug, but another thing.
        """
        truths, wrong = self.streams.first.taps, False
        for number, tap in enumerate(taps, self.streams.begin):
            reader = self.reader(tap)
            if reader is None or reader not in truths or reader not in self.known:
                continue
            if self.far(reader) >= SAME:
                wrong = True
            elif self.streams.seen(number, {tap: truths[tap]}).far.get(tap, np.inf) >= SAME:
                return False
        return wrong

    def far(self, reader: str) -> float:
        """Return how far a norm is from the reference's, over its size."""
        truth, x = self.streams.first.taps[reader], real(self.streams.read(self.known[reader]))
        move = None if x is None else move_between(x.shape, truth.shape)
        if x is None or move is None:
            return np.inf
        return compared({reader: (MOVES[move](x, truth.shape), truth)}, "").far[reader]

    def reader(self, tap: str) -> str | None:
        """Return the norm that reads a stream, None if none does."""
        first = self.streams.first
        if tap == first.layer(first.layers - 1):
            return first.norm if first.norm in self.streams.known else None
        if tap.endswith(MIDDLE):
            path, parts = tap.removesuffix(MIDDLE), BEFORE_MLP
        elif tap == first.before:
            path, parts = first.layer(0), BEFORE_ATTENTION
        elif tap == first.norm:
            return None
        else:
            path = first.layer(int(tap.removeprefix(first.stem)) + 1)
            parts = BEFORE_ATTENTION
        named = (f"{path}.{part}" for part in parts)
        return next((one for one in named if one in self.streams.known), None)

    def unread(self, number: int, reader: str) -> float:
        """Return how much of a norm's rows no stream explains, of their size."""
        shape = self.streams.known[reader]
        x, normed = self.streams.value(number), real(self.streams.read(self.known[reader]))
        if x is None or normed is None:
            return np.inf
        pair = [moved(one, shape) for one in (x, normed) if move_between(one.shape, shape)]
        if len(pair) < 2 or len(pair[0]) < FEW:
            return np.inf
        return unexplained(*pair, with_mean=self.streams.first.bias is not None)


def moved(x: np.ndarray, shape: Shape) -> np.ndarray:
    """Bring a value that fits into the shape of its tap, as rows of float64."""
    move = move_between(x.shape, shape) or "none"
    return MOVES[move](x, shape).reshape(-1, shape[-1]).astype(np.float64)


@np.errstate(all="ignore")
def unexplained(x: np.ndarray, normed: np.ndarray, *, with_mean: bool) -> float:
    """Return what a gain (and a bias) for each feature leaves of normed rows, of their size."""
    if with_mean:
        x = x - x.mean(-1, keepdims=True)
    rows = x / np.sqrt(np.mean(x * x, -1, keepdims=True))
    if with_mean:
        rows, normed = rows - rows.mean(0), normed - normed.mean(0)
    gain = np.sum(rows * normed, 0) / np.sum(rows * rows, 0)
    return finite(norm(normed - gain * rows) / norm(normed))
