"""How a port of another quantisation packs matrices: of all bugs this takes longest to try."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lockstep.parity.explaining.searching.hypothesis import Hypothesis

FAMILY = "other_quantisation"


def packing(some: Iterable[Hypothesis], known: Collection[Hypothesis]) -> set[Hypothesis]:
    """Return the ways to pack that no piece was explained by.

    Whoever packs one matrix packs its like: what shows a matrix alone says so, where the dump has
    such. Then a set of several bugs elsewhere need not try it.
    """
    return {one for one in some if one.fault.family == FAMILY and one not in known}
