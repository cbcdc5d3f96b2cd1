"""What a step finds in a buffer, or in a ring of W slots, that is read or written wrongly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.mask import MASK
from lockstep.parity.faults.number import Number
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.rotating import rotating
from lockstep.parity.faults.slots import (
    EMPTY,
    STEP,
    Asked,
    Counted,
    own,
    remembering,
    seen_by,
    weighed,
)
from lockstep.parity.graph import Call, Graph

SINKS = 4  # tokens that are never dropped, where a ring keeps the first ones


def with_sinks(asked: Asked) -> Sequence[int] | None:
    """Keep the first tokens of all, and as many of the last as there is room for."""
    if asked.window is None or asked.window <= SINKS or asked.token < asked.window:
        return None
    return [*range(SINKS), *range(asked.token + 1 - (asked.window - SINKS), asked.token + 1)]


def trimmed_by_buffer(asked: Asked) -> Sequence[int] | None:
    """Drop as many as the whole buffer is too long, though it is not full."""
    if asked.window is None or asked.begins < asked.window:
        return None
    buffer = -(-asked.begins // STEP) * STEP
    oldest = max(asked.begins - max(asked.begins - (buffer - asked.window), 0), asked.oldest)
    return [*range(oldest, asked.begins), *own(asked)]


def before_it_is_full(asked: Asked) -> Sequence[int] | None:
    """See all slots of a ring that is not full yet."""
    if asked.window is None or asked.ends >= asked.window:
        return None
    return [*seen_by(asked), *[EMPTY] * (asked.window - asked.ends)]


def overwritten(asked: Asked) -> list[int] | None:
    """See what is left in a ring when all tokens of the step are in it."""
    if asked.window is None:
        return None
    return [one for one in seen_by(asked) if one >= asked.ends - asked.window]


def read_to_the_end(asked: Asked) -> list[int]:
    """See all of a buffer, whatever was written to it."""
    buffer = -(-(asked.token + 1) // STEP) * STEP
    return [*seen_by(asked), *[EMPTY] * (buffer - asked.token - 1)]


def of_size(slots: float) -> Rewrite:
    """Let each step see all of a buffer of so many slots, which does not grow."""

    @rewrite("softmax")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        length = graph.shapes[call.number][-1]
        if not graph.steps or graph.source(call, MASK).options["window"] is not None:
            return None
        token, key = np.arange(graph.steps[0], length)[:, None], np.arange(length)
        empty = np.maximum(slots - token[:, 0] - 1, 0)
        return call.replaced(weighed(Counted((key <= token).astype(int), empty), graph.steps[0]))

    return rewritten


FIRST_KEPT = {
    f"the first {SINKS} tokens are kept": remembering(with_sinks),
    f"the first {SINKS} slots are not written again": remembering(rotating(held=SINKS)),
}
AS_THEY_LIE = remembering(rotating(ordered=False))


@rewrite("softmax")
def of_the_length(call: Call, graph: Graph) -> Call | None:
    """Let each step see all of a buffer that has a slot for each token of the text."""
    return of_size(graph.shapes[call.number][-1])(call, graph)


def slots_of_buffer() -> Number:
    """Return how many slots a buffer has of which a step sees all, where it sees the tokens."""

    def right(call: Call, graph: Graph) -> float | None:
        full = call.op == "softmax" and of_the_length(call, graph) is not None
        return graph.shapes[call.number][-1] if full else None

    def becomes(slots: float) -> Rewrite:
        def other(call: Call, graph: Graph) -> Call | None:
            return None if right(call, graph) in (None, slots) else of_size(slots)(call, graph)

        return other

    return Number("read to its end, a buffer of {} slots", right, becomes, within=(4.0, 1e6))
