"""What a step finds in a buffer, or in a ring of W slots, that is read or written wrongly."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.parity.faults.slots import EMPTY, STEP, Asked, own, seen_by

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
