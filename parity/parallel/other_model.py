"""Whether the dumps of ranks seem to be of another model than the one that they are judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.parity.explaining.other_model import BY_LENGTH, doubt_if_most_fail, holds_width
from lockstep.parity.naming.align import move_between
from lockstep.parity.naming.names import CACHED
from lockstep.parity.parallel.pieces import Shape
from lockstep.parity.parallel.ranks import Ranks


def other_than_dealt_out(
    ranks: Ranks, shapes: Mapping[str, Sequence[Shape]], model: str
) -> list[str]:
    """Return a doubt if most taps of rank 0 are none of the model's, or of another width.

    `shapes` has for each tap those of the ranks, or one if all have it alike. Such taps cannot be
    put together, so that `explain` does not see them.
    """

    def fits(tap: str, shape: Shape) -> bool:
        """Say whether moves lead to a rank's part, or it has the width of one or several parts."""
        if not (own := shapes.get(tap)):
            return tap.endswith(CACHED)
        moved = tap.endswith(BY_LENGTH) or any(move_between(shape, one) is not None for one in own)
        return moved or holds_width(shape, own[0])

    return doubt_if_most_fail(ranks.sides[0], fits, model)
