"""A dump of some tokens of its prompt, read as a dump of a text of these tokens alone.

That is right for all that works token by token, wherever a token stands. What attention makes is
read as a dump of the whole text, in `others`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.excerpts.excerpt import Excerpt
from lockstep.parity.explaining.caches.taps import with_caches
from lockstep.parity.explaining.steps.batch import positions_of
from lockstep.parity.explaining.steps.steps import (
    Fed,
    Joined,
    fed_to,
    graph_of,
    joined,
    shapes_in_prompt,
    told_of,
)
from lockstep.parity.graph import Graph
from lockstep.parity.judging.padding import OVER_KEYS
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import CACHED, parted, step_of
from lockstep.parity.naming.plan import aligned
from lockstep.reference.model import Model

Row = tuple[np.ndarray, np.ndarray]  # where tokens stand among some, and where among all
LEFT_OUT = "over the keys of all tokens, and not judged"


@dataclass(frozen=True)
class SomeRead:
    """A dump of some tokens: their graph and what is in it, the whole text, and where they stand.

    `caches` names the tensors that hold keys or values of all tokens, by their taps.
    """

    graph: Graph
    sides: Joined
    whole: Fed
    places: tuple[Row, ...]
    caches: Mapping[str, str]


def read_some(
    model: Model,
    dump: Dump,
    excerpt: Excerpt,
    tokens: Sequence[int] | None,
    names: str | Path | None,
) -> SomeRead:
    """Read a dump of some tokens; taps over the keys of all tokens are left out, and said."""
    whole = fed_to(dump, tokens)
    places = places_of(whole, excerpt, dump.padding)
    some, positions = fed_alone(whole, places, max(excerpt.counts))
    graph = graph_of(model, some, positions)
    sides, caches, over = parts_of(aligned(dump, shapes_in_prompt(graph, some), names))
    sides = joined(sides, graph, some, beside=caches)
    told = (*sides.told, *told_of(over, LEFT_OUT))
    sides = replace(sides, told=told, not_judged=sides.not_judged | over)
    return SomeRead(with_caches(graph, caches), sides, whole, places, caches)


def places_of(whole: Fed, excerpt: Excerpt, side: str) -> tuple[Row, ...]:
    """Return where each row's tokens stand; those of steps are all there."""
    positions, prompt, found = stands(whole), whole.lengths[0], []
    steps, longest = np.arange(sum(whole.lengths[1:])), max(excerpt.counts)
    for row, some in enumerate(excerpt.rows):
        mine = np.isin(positions[row, :prompt], some)
        mine &= True if whole.pads is None else ~whole.pads[row, :prompt]
        by = longest - len(some) if side == "left" else 0
        here = np.concatenate([np.arange(by, by + len(some)), longest + steps])
        found.append((here, np.concatenate([np.flatnonzero(mine), prompt + steps])))
    return tuple(found)


def stands(fed: Fed) -> np.ndarray:
    """Return the position (B, T) of each token in its own text."""
    if fed.pads is not None:
        return positions_of(fed.pads)
    return np.broadcast_to(np.arange(fed.tokens.shape[1]), fed.tokens.shape)


def fed_alone(whole: Fed, places: Sequence[Row], longest: int) -> tuple[Fed, np.ndarray]:
    """Return what would be fed if there were no other tokens, and where they stand in the text."""
    shape, every = (len(places), longest + sum(whole.lengths[1:])), stands(whole)
    tokens, positions = np.zeros(shape, int), np.zeros(shape, int)
    pads = np.ones(shape, bool)
    for row, (here, there) in enumerate(places):
        tokens[row, here], positions[row, here] = whole.tokens[row, there], every[row, there]
        pads[row, here] = False
    return Fed(tokens, (longest, *whole.lengths[1:]), pads if pads.any() else None), positions


def parts_of(sides: Alignment) -> tuple[Alignment, dict[str, str], set[str]]:
    """Take out what has an axis of all tokens: caches, those behind the last pass, and scores."""
    kept, over, caches = {}, set[str](), dict[str, tuple[int, str]]()
    for tap, name in sides.names.items():
        path = parted(tap)[1]
        if path.endswith(CACHED):
            caches[path] = max(caches.get(path, (-1, "")), (step_of(tap), name))
        elif path.endswith(OVER_KEYS):
            over.add(path)
        else:
            kept[tap] = name
    last = {path: name for path, (_, name) in caches.items()}
    return replace(sides, names=kept), last, over
