"""Products that a port makes at once, `qkv_proj` or `gate_up_proj`, and a model has apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, permutations
from math import prod

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.parts import Parts
from lockstep.parity.naming.align import MOVES, Shape, move_between
from lockstep.parity.naming.llama_cpp import NUMBER

# By its path in a layer, what one product holds, in the order in which most ports lay it.
FUSED = {
    "self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "self_attn.kv_proj": ("k_proj", "v_proj"),
    "mlp.gate_up_proj": ("gate_proj", "up_proj"),
}
BY_HEADS, IN_TURNS = "key head by key head", "taking turns"
PRODUCT = re.compile(rf"model\.layers\.{NUMBER}\.({'|'.join(map(re.escape, FUSED))})")


def is_product(name: str) -> bool:
    """Say whether a name is what a port may dump in the place of several taps, of any layer."""
    return PRODUCT.fullmatch(name) is not None


def fused_taps(known: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return what a port may dump in the place of several taps of a model, with its shape."""
    found: dict[str, Shape] = {}
    for tap, shape in known.items():
        layer, _, first = tap.rpartition(".")
        for path, parts in FUSED.items():
            whole = layer.removesuffix(path.partition(".")[0]) + path
            if first != parts[0] or not whole.startswith(f"{layer}."):
                continue
            if all(one in known for one in parts_of(whole)):
                found[whole] = (*shape[:-1], sum(known[one][-1] for one in parts_of(whole)))
    return found


def parts_of(whole: str) -> list[str]:
    """Return the taps that one product holds."""
    layer, module, last = whole.rsplit(".", 2)
    return [f"{layer}.{module}.{part}" for part in FUSED[f"{module}.{last}"]]


def layouts(names: Sequence[str], widths: Sequence[int], blocks: int) -> dict[str, np.ndarray]:
    """Return how parts may lie: the columns in which the first, the next ... are found.

    Of layouts that are the same the first is returned.
    """
    found = every_layout(names, widths, blocks)
    first = {columns.tobytes(): said for said, columns in reversed(found.items())}
    return {said: columns for said, columns in found.items() if said in first.values()}


def every_layout(names: Sequence[str], widths: Sequence[int], blocks: int) -> dict[str, np.ndarray]:
    """Return the columns of each layout, some of which may be the same.

    Parts lie one behind the other in any order, or each is in so many `blocks`: the first block of
    each, then the second of each ...
    """
    found: dict[str, np.ndarray] = {}
    for order in permutations(range(len(names))):
        starts = dict(zip(order, accumulate((widths[n] for n in order), initial=0), strict=False))
        places = [starts[n] + np.arange(width) for n, width in enumerate(widths)]
        found[", ".join(names[n] for n in order)] = np.concatenate(places)
    if not any(width % blocks for width in widths):
        parts = np.split(np.arange(sum(widths)), [*accumulate(widths)][:-1])
        rows = np.concatenate([part.reshape(blocks, -1) for part in parts], axis=1)
        said = IN_TURNS if blocks == widths[0] else BY_HEADS
        found[f"{', '.join(names)}, {said}"] = np.argsort(rows.ravel())
    return found


@dataclass(frozen=True)
class Cut:
    """Some columns of a tensor of a dump, which has so many numbers for each token of a batch."""

    name: str
    columns: np.ndarray
    batch: int
    width: int

    def whole(self, shape: Shape) -> Shape:
        """Return the shape (B, L, W) of all columns."""
        return (self.batch, prod(shape) // (self.batch * self.width), self.width)

    def fits(self, shape: Shape) -> bool:
        return move_between(shape, self.whole(shape)) is not None

    def of(self, x: np.ndarray) -> np.ndarray:
        """Return these columns of a tensor, (B, L, n)."""
        wanted = self.whole(x.shape)
        return MOVES[move_between(x.shape, wanted) or "none"](x, wanted)[..., self.columns]


def with_parts(dump: Dump, cuts: Mapping[str, Cut]) -> Dump:
    """Return a dump that also has parts of its tensors, by names of their own."""

    def read(name: str) -> np.ndarray:
        return cuts[name].of(dump.read(cuts[name].name)) if name in cuts else dump.read(name)

    def parted(name: str) -> Parts:
        if name not in cuts:
            return dump.parts(name)
        numbers = cache(lambda: read(name).reshape(-1))  # its type alone may be asked for
        kind = dump.parts(cuts[name].name).dtype
        return Parts(shapes[name], kind, lambda start, stop, room: numbers()[start:stop], False)

    shapes = {
        name: (*cut.whole(dump.shapes[cut.name])[:2], len(cut.columns))
        for name, cut in cuts.items()
    }
    return replace(dump, shapes={**dump.shapes, **shapes}, read=read, parted=parted)
