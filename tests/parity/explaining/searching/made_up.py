"""Bugs without a rewrite, to make sets of."""

from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis


def atom(id: str, variant: str, *calls: int) -> Atom:
    return Atom(Hypothesis(None, id, variant, 0, frozenset(calls)), frozenset(calls))  # pyright: ignore[reportArgumentType]


def sets(*names: str) -> list[frozenset[Atom]]:
    return [frozenset([atom(name, "", 1)]) for name in names]
