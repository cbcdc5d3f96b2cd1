"""Caches of all tokens in a dump of some: which hold each token, read when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lockstep.parity.explaining.caches.compared import SWAPPED
from lockstep.parity.explaining.caches.layouts import Layout, laid_out, layouts_of
from lockstep.parity.explaining.caches.taps import Kept, kept_in
from lockstep.parity.explaining.dumped import Dumped
from lockstep.parity.explaining.excerpts.reading import SomeRead
from lockstep.parity.explaining.steps.steps import Joined, told_of
from lockstep.parity.naming.align import Shape

OTHER_SLOTS = "not judged, not of all T tokens and G key heads as (B, G, T, D) or (B, T, G, D)"


@dataclass(frozen=True)
class InSlots(Joined):
    """Caches by their taps: `tensors` names them, `layouts` says where their heads are."""

    tensors: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, Layout] = field(default_factory=dict)

    def read(self, tap: str, shape: Shape | None = None) -> np.ndarray:
        """Return a cache as (B, G, T, D); `shape` says B, G and D."""
        assert shape is not None
        batch, heads, _, width = shape
        return laid_out(self.dump.read(self.tensors[tap]), self.layouts[tap], batch, [heads], width)


def held_of_all(read: SomeRead) -> tuple[Dumped, Joined]:
    """Return the keys and values that the dump has of all tokens, in their order, by number.

    Last come its sides, which tell of caches that are no such thing, and of those that lie
    otherwise.
    """
    kept = kept_in(read.graph)
    layouts = {tap: layout_of(kept[tap], read) for tap in read.caches if tap in kept}
    known = {tap: one for tap, one in layouts.items() if one is not None}
    sides = InSlots(**vars(read.sides), tensors=read.caches, layouts=known)
    other = read.caches.keys() - known.keys()
    told = (*read.sides.told, *told_of(other, OTHER_SLOTS))
    told += (SWAPPED,) * any(one.behind for one in known.values())
    whole = replace(read.sides, told=told, not_judged=read.sides.not_judged | other)
    return Dumped(sides, read.graph, {kept[tap].number: tap for tap in known}), whole


def layout_of(part: Kept, read: SomeRead) -> Layout | None:
    """Return how a cache lies, None if it has no slot for each token, or is of whole numbers."""
    batch, heads, _, width = read.graph.shapes[part.number]
    dump, name = read.sides.dump, read.caches[part.tap]
    if dump.parts(name).dtype.kind in "iubc":
        return None
    every = np.broadcast_to(np.float32(0), dump.shapes[name])
    for one in layouts_of([every.shape], batch, [heads], width):
        if laid_out(every, one, batch, [heads], width).shape[2] == sum(read.whole.lengths):
            return one
    return None
