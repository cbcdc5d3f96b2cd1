"""Ports that make queries, keys and values at once, or gate and up, and dump that one product.

Each part is then compared by itself, as if it had been dumped alone. Where it lies in the product
is the port's own affair, and no name says it: the values do, in the first layer where all parts are
right. Where there is none, the product is compared with nothing: it may be of queries and keys that
were turned in place, or anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from lockstep.parity.cli.output import counted
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator, Graph
from lockstep.parity.naming.align import Alignment, Shape, move_between
from lockstep.parity.naming.fused import Cut, fused_taps, layouts, parts_of, with_parts
from lockstep.parity.naming.names import parted
from lockstep.parity.naming.streams import ALONE, SAME, compared
from lockstep.reference.model import Model

TOKENS = 8  # that are looked at
LAYERS = 4  # that may say how parts lie
CUT = "{whole} of {count} cut up, as its values say: {how}"
LEFT = "{whole} left: its values do not say how {parts} lie in it"


def with_fused(
    model: Model, graph: Graph, sides: Alignment, wanted: Mapping[str, Shape]
) -> tuple[Graph, Alignment]:
    """Return a graph that knows which products a port makes at once, and where their parts are.

    `wanted` says which shape each tap has in the pass of the prompt. Of a batch that is filled up
    nothing is said, nor of a layer of which the dump has a part alone too.
    """
    fused = Fused(model, graph, sides, wanted)
    every = [] if graph.pads is not None else [*filter(fused.has, fused_taps(wanted))]
    cuts: dict[str, tuple[str, Cut]] = {}
    told: list[str] = []
    for whole, several in groupby(sorted(every, key=path_of), key=path_of):
        taps = [*several]
        how, columns = fused.layout(taps)
        found = [fused.cut_up(tap, columns) for tap in taps if how]
        parts = ", ".join(part.rpartition(".")[2] for part in parts_of(taps[0]))
        said = {"whole": whole, "parts": parts, "how": how}
        layers = counted([some for some in found if some], "layer")
        told.append((CUT if any(found) else LEFT).format(**said, count=layers))
        for some in found:
            cuts |= some
    if not told:
        return graph, sides
    at_once = frozenset(tap.rpartition(".")[0] for tap in cuts if not parted(tap)[0])
    return replace(graph, fused=at_once, rewritten={}), in_parts(sides, cuts, told)


def in_parts(
    sides: Alignment, cuts: Mapping[str, tuple[str, Cut]], told: Sequence[str]
) -> Alignment:
    """Return where the taps of a dump are, if some are parts of others by names of their own."""
    gone = {cut.name for _, cut in cuts.values()}
    names = {tap: name for tap, name in sides.names.items() if name not in gone}
    names |= {tap: name for tap, (name, _) in cuts.items()}
    dump = with_parts(sides.dump, dict(cuts.values()))
    return replace(sides, dump=dump, names=names, told=(*sides.told, *told))


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

    def layout(self, taps: Sequence[str]) -> tuple[str, np.ndarray]:
        """Return how the parts lie, and their columns; nothing if no layer says it."""
        for tap in taps[:LAYERS]:
            whole = self.sides.read(tap, self.shape(tap))
            if whole.shape != self.shape(tap) or whole.dtype.kind in "iubc":
                continue
            names = [part.rpartition(".")[2] for part in parts_of(tap)]
            several = layouts(names, self.widths(tap), self.blocks(tap))
            truths = [self.right(part) for part in parts_of(tap)]
            far = {how: farthest(whole[..., at], truths) for how, at in several.items()}
            best, *others = sorted(far, key=far.__getitem__)
            if far[best] < SAME and all(far[one] > ALONE * far[best] for one in others):
                return best, several[best]
        return "", np.array([], int)

    def blocks(self, tap: str) -> int:
        """Return how many blocks of each part there are, if parts take turns."""
        by_heads = tap.endswith("kv_proj")
        return self.model.config.num_key_value_heads if by_heads else self.widths(tap)[0]

    def right(self, part: str) -> np.ndarray:
        """Return what MODEL makes of a part for the first tokens, from the port's own values."""
        number, before = self.graph.taps[part], dict(self.before())
        calls = self.graph.piece(number, before).calls
        taken = {source for call in calls for source in self.graph.sources(call)} & before.keys()
        given = {one: self.sides.read(before[one], self.wanted[before[one]]) for one in taken}
        rows = min(TOKENS, self.wanted[part][1])
        run = Evaluator(
            self.graph, self.model.ops, np.dtype(np.float32), given,
            Tensors(self.model.checkpoint), rows=rows,
        )  # fmt: skip
        return run.right(number)

    def before(self) -> Iterable[tuple[int, str]]:
        """Yield the number and the tap of each value that the dump has of all tokens."""
        shapes = self.sides.dump.shapes
        for tap, name in self.sides.names.items():
            if tap in self.wanted and move_between(shapes[name], self.wanted[tap]) is not None:
                yield self.graph.taps[tap], tap

    def cut_up(self, tap: str, columns: np.ndarray) -> dict[str, tuple[str, Cut]]:
        """Return of each part, in every step, its tap, a name, and where it is; or nothing."""
        several = np.split(columns, np.cumsum(self.widths(tap))[:-1])
        batch, *_, width = self.shape(tap)
        found: dict[str, tuple[str, Cut]] = {}
        for whole, name in self.sides.names.items():
            step, path = parted(whole)
            for part, some in zip(parts_of(tap), several, strict=True) if path == tap else ():
                cut = Cut(name, some, batch, width)
                if not cut.fits(self.sides.dump.shapes[name]):
                    return {}
                found[step + part] = f"{name} ({part.rpartition('.')[2]})", cut
        return found


def farthest(whole: np.ndarray, truths: Sequence[np.ndarray]) -> float:
    """Return how far a part is at most from the right one, over its size."""
    ends = np.cumsum([truth.shape[-1] for truth in truths])[:-1]
    parts = np.split(whole[:, : truths[0].shape[1]].astype(np.float32), ends, axis=-1)
    pairs = {str(n): pair for n, pair in enumerate(zip(parts, truths, strict=True))}
    return max(compared(pairs, "").far.values())
