"""Which of two equal axes are the tokens, where a dump has as many of them as a layer has heads.

Of (B, 8, 8, D) no shape tells whether heads or tokens come first. The dump of a whole prompt tells
it, and so do the steps behind the prompt, which are of one token. Else both readings are held
against the other side's values, and the nearer one is taken, as other conventions are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.parts import Parts, held
from lockstep.parity.excerpts.excerpt import Excerpt, Shape, own_axis
from lockstep.parity.judging.padding import BY_HEAD
from lockstep.parity.naming.names import CACHED, parted, tap_named

SPLIT = (*BY_HEAD, ".q_norm", ".k_norm", ".v_norm", ".q_proj", ".k_proj", ".v_proj", ".context")
CLEAR = 0.8  # times as far as the other reading: a wrong port is still nearer as it is right
SWAPPED = "{side}: heads and tokens swapped in {count} tensors {kind}: so they are of the other's"
LEFT_OUT = (
    "as many tokens as heads, and nothing tells which axis is which: dump one token more or fewer"
)


@dataclass(frozen=True)
class Cut:
    """A side that was cut: the dump as it is now, its shapes before, and the tokens it had then."""

    dump: Dump
    before: Mapping[str, Shape]
    held: Excerpt
    side: str

    def open(self) -> dict[str, int | None]:
        """Return where tokens lie in each tensor whose shape no longer says it; None: unknown."""
        steps = by_steps(self.before)
        found: dict[str, int | None] = {}
        for name, shape in self.dump.shapes.items():
            first = len(shape) - 3
            if is_split(name, shape) and shape[first] == shape[first + 1] > 1:
                told = alone(self.before[name], first, max(self.held.counts))
                found[name] = told if told is not None else steps.get(name)
        return found


def is_split(name: str, shape: Shape) -> bool:
    """Say whether a tensor of a prompt has heads and tokens on axes of their own."""
    step, tap = parted(tap_named(name))
    return not step and len(shape) in (3, 4) and tap.endswith(SPLIT) and not tap.endswith(CACHED)


def by_steps(shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return where tokens lie where two axes are as long as each other, by the steps behind the
    prompt: they are of one token."""
    steps = {tap: shape for name, shape in shapes.items()
             for step, tap in [parted(tap_named(name))] if step}  # fmt: skip
    found = {}
    for name, shape in shapes.items():
        first = len(shape) - 3
        if steps and is_split(name, shape) and shape[first] == shape[first + 1]:
            axis = alone(steps.get(parted(tap_named(name))[1], ()), first, 1)
            if axis is not None:
                found[name] = axis
    return found


def alone(shape: Shape, first: int, count: int) -> int | None:
    """Return which of two axes is `count` long, None if neither is, or both are."""
    axes = [axis for axis in (first, first + 1) if len(shape) == first + 3 and shape[axis] == count]
    return axes[0] if len(axes) == 1 else None


def settled(left: Cut, right: Cut) -> tuple[Dump, Dump, list[str], dict[str, Shape]]:
    """Put tokens where the tap has them, on both sides; what was done is told.

    Last come the taps that a side was left without, since nothing is known of it.
    """
    ours, theirs = left.open(), right.open()
    told: list[str] = []
    done = placed(left, ours, right, theirs, told)
    left = replace(left, dump=done)
    ours = {name: own_axis(name, done.shapes[name]) for name in ours if name in done.shapes}
    port = placed(right, theirs, left, ours, told)
    kept = ((left.before, done), (right.before, port))
    gone = {tap_named(name): shapes[name] for shapes, now in kept
            for name in shapes if name not in now.shapes}  # fmt: skip
    return done, port, told, gone


def placed(
    cut: Cut, axes: Mapping[str, int | None], other: Cut, others: Mapping[str, int | None],
    told: list[str],
) -> Dump:  # fmt: skip
    """Return a side with its tokens where taps have them; what nothing is known of is left out."""
    partners = {parted(tap_named(name)): name for name in other.dump.shapes}
    kinds: dict[str, list[str]] = defaultdict(list)
    swapped, gone = set[str](), set[str]()
    for name, axis in axes.items():
        if axis is None:
            kinds[tap_named(name).rpartition(".")[2]].append(name)
        elif axis != own_axis(name, cut.dump.shapes[name]):
            swapped.add(name)
    for kind, names in kinds.items():
        both = [(name, partners.get(parted(tap_named(name)))) for name in names]
        pairs = [pair for name, partner in both
                 if partner for pair in far(cut, name, other, partner, others)]  # fmt: skip
        if not pairs and any(partner for _, partner in both):
            continue  # it is as wrong in either order
        if not pairs:
            unsaid = cut.side == "right" and "backend" not in cut.dump.about
            gone |= {*names} if unsaid else set()
        else:
            plain, turned = min(pairs, key=clearness)
            if turned < CLEAR * plain:
                swapped |= {*names}
                told.append(SWAPPED.format(side=cut.side, count=len(names), kind=kind))
            elif plain and plain >= CLEAR * turned:
                gone |= {*names}
    return without(turned_in(cut.dump, swapped), gone)


def clearness(pair: tuple[float, float]) -> float:
    return min(pair) / max(pair) if max(pair) else 1.0


def far(
    cut: Cut, name: str, other: Cut, partner: str, others: Mapping[str, int | None]
) -> list[tuple[float, float]]:
    """Return how far a tensor is from its partner as a tap has it, and swapped; nothing if it is of
    another size, or the same in either order."""
    truth, port = other.dump.read(partner), cut.dump.read(name)
    if truth.size != port.size:
        return []
    axis = others.get(partner)
    if axis is None and truth.ndim >= 3 and tap_named(partner).endswith(SPLIT):
        axis = own_axis(partner, truth.shape)
        count = port.shape[-3]
        axis = axis if truth.shape[axis] == count else alone(truth.shape, truth.ndim - 3, count)
    own = own_axis(name, port.shape)
    right = by_token(truth, axis)
    plain, turned = by_token(port, own), by_token(port, 2 * port.ndim - 5 - own)
    if np.array_equal(plain, turned):
        return []
    return [(float(np.linalg.norm(plain - right)), float(np.linalg.norm(turned - right)))]


def by_token(x: np.ndarray, axis: int | None) -> np.ndarray:
    """Return the numbers token by token: what is split by heads has its tokens on `axis`.

    What is not finite counts as zero: it is judged later.
    """
    wide = np.where(np.isfinite(x), x, np.zeros((), x.dtype)).astype(np.float64)
    return (wide if axis is None else np.moveaxis(wide, axis, x.ndim - 3)).reshape(-1)


def turned_in(dump: Dump, names: Collection[str]) -> Dump:
    """Return a dump in which the two axes of these tensors, as long as each other, are swapped."""
    if not names:
        return dump
    return replace(dump, read=partial(read_turned, dump, names),
                   parted=partial(parts_turned, dump, names))  # fmt: skip


def read_turned(dump: Dump, names: Collection[str], name: str) -> np.ndarray:
    x = dump.read(name)
    return np.ascontiguousarray(x.swapaxes(-2, -3)) if name in names else x


def parts_turned(dump: Dump, names: Collection[str], name: str) -> Parts:
    return held(read_turned(dump, names, name)) if name in names else dump.parts(name)


def without(dump: Dump, names: Collection[str]) -> Dump:
    if not names:
        return dump
    return replace(dump, shapes={k: v for k, v in dump.shapes.items() if k not in names})
