"""Whether the dumps of ranks seem to be of another model than the one that they are judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.parity.explaining.other_model import BY_LENGTH, said_of_most
from lockstep.parity.naming.align import move_between
from lockstep.parity.naming.names import CACHED, is_tap
from lockstep.parity.parallel.pieces import Shape
from lockstep.parity.parallel.ranks import Ranks


def other_than_dealt_out(
    ranks: Ranks, shapes: Mapping[str, Sequence[Shape]], model: str
) -> list[str]:
    """Return a doubt if most taps of rank 0 are none of the model's, or of another width.

    `shapes` has for each tap those of the ranks, or one if all have it alike. Such taps cannot be
    put together, so that `explain` does not see them.
    """
    side = ranks.sides[0]
    found = {tap: side.dump.shapes[name] for tap, name in side.names.items() if is_tap(tap)}
    wrong = [tap for tap, shape in found.items() if not fits(tap, shape, shapes.get(tap, []))]
    return said_of_most(wrong, found, side.names, model)


def fits(tap: str, shape: Shape, own: Sequence[Shape]) -> bool:
    """Say whether moves lead to a rank's part, or the width is that of one or of several parts."""
    if not own:
        return tap.endswith(CACHED)
    if tap.endswith(BY_LENGTH) or any(move_between(shape, one) is not None for one in own):
        return True
    width = own[0][-1]
    return any(size and size % width == 0 for size in shape)
