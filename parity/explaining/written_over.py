"""Taps that all hold the same numbers: one buffer that was written over, and never copied.

A port that adds to its stream in place, and keeps what its hooks are given without a copy, dumps
what the stream was in the end under the name of each layer. No bug made those numbers, so all but
the last of them are left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.steps.steps import Joined
from lockstep.parity.explaining.stream import is_embedding, layers_of
from lockstep.parity.naming.grouping import grouped

FEWEST = 3  # taps that hold the same: two may do by a bug that leaves a layer out
WRITTEN_OVER = "what a later tap holds: a buffer that was written over"
SAID = (
    "{taps}: all of them hold what {last} does, so this was one buffer that was written over. They "
    "are left out. Copy what a hook keeps"
)


def all_but_written_over(case: Case) -> tuple[Joined, list[str]]:
    """Return where the taps are but for those of a buffer that was written over, and a line."""
    *over, last = same_as_all_layers(case) or [-1]
    if not over:
        return case.sides, []
    numbers, names = case.graph.taps, case.sides.names
    gone = [tap for tap in names if numbers.get(tap) in over]
    kept = {tap: name for tap, name in names.items() if tap not in gone}
    stays = next(tap for tap in names if numbers.get(tap) == last)
    said = SAID.format(taps=grouped(gone), last=stays)
    return replace(case.sides, names=kept, moved=Counter()), [said]


def same_as_all_layers(case: Case) -> list[int]:
    """Return the values that are as all layers' outputs are, in order; none if these differ.

    If they are what goes into the first layer, and should, the layers do nothing: that is a bug.
    """
    dumped = case.dumped
    layers = [*layers_of(case.graph.taps, dumped).values()]
    if not layers or not holds_number(dumped[layers[0]]):
        return []
    first = dumped[layers[0]]
    if not all(np.array_equal(dumped[one], first) for one in layers[-1:] + layers[1:-1]):
        return []
    same = [one for one in sorted(dumped) if np.array_equal(dumped[one], first)]
    return [] if len(same) < FEWEST or is_embedding(case, first) else same


def holds_number(value: np.ndarray) -> bool:
    return bool(np.isfinite(value).all() and value.any())
