"""One dump of the whole model, made of the dumps of its ranks: nothing is read before it is asked.

Then everything that knows nothing of ranks judges it: `diff`, and `explain` with all its bugs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.align import move_between
from lockstep.parity.parallel.pieces import Shape, dealt_along, joined, put_together
from lockstep.parity.parallel.ranks import Ranks, path_in


@dataclass(frozen=True)
class Plan:
    """How a tap is put together: the shape of the whole, those of the ranks' own parts, and whether
    what they dumped is parts of it before they are summed, or put behind each other."""

    whole: Shape
    own: tuple[Shape, ...]
    parts: bool = False

    @property
    def dealt(self) -> bool:
        return any(shape != self.whole for shape in self.own)


@dataclass(frozen=True)
class Merged:
    """The tensors of a whole model by tap. `plans` has those that can be put together."""

    ranks: Ranks
    plans: Mapping[str, Plan]

    def dump(self, path: Path, about: Mapping[str, str]) -> Dump:
        """Return all of them as one dump; beside them what has no plan, as rank 0 has it."""
        shapes = {tap: self.plans[tap].whole for tap in self.ranks.names if tap in self.plans}
        return Dump(path, shapes, self.read, about)

    def read(self, tap: str) -> np.ndarray:
        plan, wrote = self.plans[tap], self.ranks.wrote(tap)
        parts = [self.ranks.read(tap, rank, plan.own[rank]) for rank in wrote]
        if plan.parts:
            _, whole = next(put_together(parts, plan.whole))
            return whole.astype(parts[0].dtype)
        if parts[0].shape == plan.whole:  # all have it alike, or all of it
            return parts[0]
        axis = dealt_along(parts[0].shape, plan.whole)
        made = None if axis is None else joined(path_in(tap), parts, axis, plan.whole[axis])
        return self.ranks.read(tap, wrote[0], plan.whole) if made is None else made


def plans_for(
    ranks: Ranks,
    shapes: Mapping[str, Sequence[Shape]],
    whole: Mapping[str, Shape],
    parts: frozenset[str],
) -> dict[str, Plan]:
    """Return how each tap of a model is put together.

    `shapes` has for each tap those of the ranks, or one if all have it alike; `whole` those of the
    whole model's taps in a prompt; `parts` are taps of which parts were dumped.
    """
    found = {}
    for tap in ranks.names:
        if tap not in shapes:
            continue
        own, path = [*shapes[tap]], path_in(tap)
        own = own * len(ranks.sides) if len(own) == 1 else own
        made = Plan(whole_shape(own[0], shapes[path][0], whole[path]), tuple(own), tap in parts)
        if made.dealt and len(ranks.wrote(tap)) < len(ranks.sides):
            continue
        if made.parts or all(fits(ranks, tap, rank, made) for rank in ranks.wrote(tap)):
            found[tap] = made
    return found


def whole_shape(part: Shape, of_prompt: Shape, whole: Shape) -> Shape:
    """Return the shape of the whole in any step: another one along the axis that is dealt out."""
    axis = dealt_along(of_prompt, whole)
    return tuple(whole[place] if place == axis else size for place, size in enumerate(part))


def fits(ranks: Ranks, tap: str, rank: int, plan: Plan) -> bool:
    """Tell whether a rank's tensor can be brought into the shape of its part, or of the whole."""
    side = ranks.sides[rank]
    found = side.dump.shapes[side.names[tap]]
    return any(move_between(found, shape) is not None for shape in (plan.own[rank], plan.whole))
