"""The one bug of a set that no other piece has, and what others have in its place.

A piece that is searched early is explained by what is nearest. Where a bug hardly shows, that may
be a rounding beside others; what is known by the end of the search may do better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lockstep.parity.explaining.searching.hypothesis import Hypothesis

Bugs = frozenset[Hypothesis]


def sure(sets: Iterable[Bugs]) -> Bugs:
    """Return the bugs without which a piece cannot be explained."""
    found = [*sets]
    return frozenset.intersection(*found) if found else frozenset()


def replaced(sets: Iterable[Bugs], others: Sequence[Bugs]) -> Iterator[Bugs]:
    """Yield the sets of which other pieces have all but one bug, with one of theirs instead.

    `others` are the bugs that each of the other pieces must have.
    """
    known = frozenset[Hypothesis]().union(*others)
    rests = dict.fromkeys(some & known for some in sets if len(some - known) == 1)
    for rest in filter(None, rests):
        instead = sorted(known - rest, key=lambda one: one.rank)
        yield from (rest | {one} for one in instead)
