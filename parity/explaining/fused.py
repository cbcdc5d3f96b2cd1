"""Ports that make queries, keys and values at once, or gate and up, and dump that one product.

Each part is then compared by itself, as if it had been dumped alone. Where it lies in the product
is the port's own affair, and no name says it: the values do, in each layer where all parts are
right. Any other layer's product is compared with nothing: it may be of queries and keys that were
turned in place, or of rows that were loaded wrong, which is found in what lies behind it. And so is
each, if two layers say different things: one of them has its rows elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from lockstep.parity.cli.output import counted
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator, Graph
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.naming.align import Alignment, Shape, move_between
from lockstep.parity.naming.fused import (
    Cut,
    every_layout,
    fused_taps,
    layouts,
    parts_of,
    with_parts,
)
from lockstep.parity.naming.names import parted
from lockstep.parity.naming.streams import ALONE, compared
from lockstep.reference.model import Model
from lockstep.reference.stores.kinds import heads_of

TOKENS = 8  # that are looked at
# How far the right parts are at most, over their size: a bias that comes later is as small. In a
# coarse dtype it is so many of its epsilons.
NEAR, EACH = 5e-3, 2
CALLS = 48  # that a part may be behind what was dumped: those of a layer or two
CUT = "{whole} of {count} cut up, as its values say: {how}"
LEFT = "{whole} left: its values do not say how {parts} lie in it"
SOME = "{whole} of {count} left: its values there do not say so"


def with_fused(
    model: Model, graph: Graph, sides: Alignment, wanted: Mapping[str, Shape]
) -> tuple[Graph, Alignment]:
    """Return a graph that knows which products a port makes at once, and where their parts are.

    `wanted` says which shape each tap has in the pass of the prompt. Of a batch that is filled up
    nothing is said, nor of a layer of which the dump has a part alone too.
    """
    fused = Fused(model, graph, replace(sides, moved=Counter()), wanted)  # these reads count not
    every = [] if graph.pads is not None else [*filter(fused.has, fused_taps(wanted))]
    cuts: dict[str, tuple[str, Cut]] = {}
    told: list[str] = []
    for _, several in groupby(sorted(every, key=path_of), key=path_of):
        taps = [*several]
        how, right = fused.layout(taps)
        found = [some for tap in right if (some := fused.cut_up(tap, how))]
        told += lines(taps, how, len(found))
        for some in found:
            cuts |= some
    if not told:
        return graph, sides
    at_once = frozenset(tap.rpartition(".")[0] for tap in cuts if not parted(tap)[0])
    return replace(graph, fused=at_once, rewritten={}), in_parts(sides, cuts, told)


def lines(taps: Sequence[str], how: str, count: int) -> list[str]:
    """Say of how many of these products the parts are known, and how they lie."""
    whole, some = path_of(taps[0]), counted(taps[:count], "layer")
    if not count:
        parts = ", ".join(part.rpartition(".")[2] for part in parts_of(taps[0]))
        return [LEFT.format(whole=whole, parts=parts)]
    left = [SOME.format(whole=whole, count=counted(taps[count:], "layer"))]
    return [CUT.format(whole=whole, count=some, how=how), *left * (count < len(taps))]


def in_parts(
    sides: Alignment, cuts: Mapping[str, tuple[str, Cut]], told: Sequence[str]
) -> Alignment:
    """Return where the taps of a dump are, if some are parts of others by names of their own."""
    gone = {cut.name for _, cut in cuts.values()}
    names = {tap: name for tap, name in sides.names.items() if name not in gone}
    names |= {tap: name for tap, (name, _) in cuts.items()}
    dump = with_parts(sides.dump, dict(cuts.values()))
    return replace(sides, dump=dump, names=names, made_up=len(cuts), told=(*sides.told, *told))


def path_of(tap: str) -> str:
    return ".".join(tap.split(".")[-2:])


@dataclass(frozen=True)
class Fused:
    """The products of a dump that hold several taps of a model."""

    model: Model
    graph: Graph
    sides: Alignment
    wanted: Mapping[str, Shape]

    def has(self, tap: str) -> bool:
        """Say whether a product is in the dump, and none of its parts alone."""
        names = self.sides.names
        return tap in names and not any(part in names for part in parts_of(tap))

    def widths(self, tap: str) -> list[int]:
        return [self.wanted[part][-1] for part in parts_of(tap)]

    def shape(self, tap: str) -> Shape:
        return (*self.wanted[parts_of(tap)[0]][:-1], sum(self.widths(tap)))

    def layout(self, taps: Sequence[str]) -> tuple[str, list[str]]:
        """Return how the parts lie, and where they are right; nothing if layers differ in it."""
        said = {tap: some for tap in taps if (some := self.columns_said(tap)) is not None}
        if not said:
            return "", []
        several = {tap: self.columns(tap) for tap in said}
        for how in next(iter(several.values())):
            if all(np.array_equal(several[tap].get(how, ()), some) for tap, some in said.items()):
                return how, [*said]
        return "", []

    def columns_said(self, tap: str) -> np.ndarray | None:
        """Return in which columns all parts are right, None if it is no layout's or several'.

        The first token of a prompt says nothing of heads: keys that are turned in place are there
        as if they were not.
        """
        if not all(map(self.is_near, parts_of(tap))):
            return None
        whole, first = self.sides.read(tap, self.shape(tap)), int(self.by_heads(tap))
        if whole.shape != self.shape(tap) or whole.dtype.kind in "iubc" or whole.shape[1] <= first:
            return None
        truths = [self.right(part)[:, first:] for part in parts_of(tap)]
        several = layouts(*self.of_parts(tap))
        far = {how: farthest(whole[:, first:, at], truths) for how, at in several.items()}
        best, *others = sorted(far, key=far.__getitem__)
        near = max(NEAR, EACH * EPSILONS.get(whole.dtype.name, 0.0))
        alone = far[best] < near and all(far[one] > ALONE * far[best] for one in others)
        return several[best] if alone else None

    def columns(self, tap: str) -> dict[str, np.ndarray]:
        """Return where the parts are, by each name of a layout: these may be of other widths."""
        return every_layout(*self.of_parts(tap))

    def of_parts(self, tap: str) -> tuple[list[str], list[int], int]:
        """Return the parts' names, their widths, and how many blocks of each may take turns."""
        names = [part.rpartition(".")[2] for part in parts_of(tap)]
        widths = self.widths(tap)
        layer = self.graph.calls[self.graph.taps[parts_of(tap)[0]]].layer
        if layer is None or not self.by_heads(tap):
            return names, widths, widths[0]
        return names, widths, heads_of(self.model.config, layer)[0]

    def by_heads(self, tap: str) -> bool:
        return tap.endswith("kv_proj")

    def is_near(self, part: str) -> bool:
        """Say whether it is soon made of the port's own values: all layers are looked at."""
        return len(self.graph.piece(self.graph.taps[part], self.before).calls) <= CALLS

    def right(self, part: str) -> np.ndarray:
        """Return what MODEL makes of a part for the first tokens, from the port's own values."""
        number, before = self.graph.taps[part], self.before
        calls = self.graph.piece(number, before).calls
        taken = {source for call in calls for source in self.graph.sources(call)} & before.keys()
        given = {one: self.sides.read(before[one], self.wanted[before[one]]) for one in taken}
        rows = min(TOKENS, self.wanted[part][1])
        run = Evaluator(
            self.graph, self.model.ops, np.dtype(np.float32), given,
            Tensors(self.model.checkpoint), rows=rows,
        )  # fmt: skip
        return run.right(number)

    @cached_property
    def before(self) -> dict[int, str]:
        """The number and the tap of each value that the dump has of all tokens."""
        shapes = self.sides.dump.shapes
        return {
            self.graph.taps[tap]: tap
            for tap, name in self.sides.names.items()
            if tap in self.wanted and move_between(shapes[name], self.wanted[tap]) is not None
        }

    def cut_up(self, tap: str, how: str) -> dict[str, tuple[str, Cut]]:
        """Return of each part, in every step, its tap, a name, and where it is; or nothing.

        Nothing where a shape does not fit, or a step has a part alone.
        """
        several = np.split(self.columns(tap)[how], np.cumsum(self.widths(tap))[:-1])
        batch, *_, width = self.shape(tap)
        found: dict[str, tuple[str, Cut]] = {}
        for whole, name in self.sides.names.items():
            step, path = parted(whole)
            for part, some in zip(parts_of(tap), several, strict=True) if path == tap else ():
                cut = Cut(name, some, batch, width)
                if step + part in self.sides.names or not cut.fits(self.sides.dump.shapes[name]):
                    return {}
                found[step + part] = f"{name} ({part.rpartition('.')[2]})", cut
        return found


@np.errstate(all="ignore")
def farthest(whole: np.ndarray, truths: Sequence[np.ndarray]) -> float:
    """Return how far a part is at most from the right one, over its size."""
    ends = np.cumsum([truth.shape[-1] for truth in truths])[:-1]
    parts = np.split(whole[:, : truths[0].shape[1]].astype(np.float32), ends, axis=-1)
    pairs = {str(n): pair for n, pair in enumerate(zip(parts, truths, strict=True))}
    return max(compared(pairs, "").far.values())
