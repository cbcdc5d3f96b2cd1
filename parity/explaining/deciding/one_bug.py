"""Variants of one bug in like places are one bug: what fits as well must fit wherever it is.

A scale of sliding layers and one of full layers may both be wrong in the same way. What does the
same to the one kind and not to the other would be a bug more, and not the same with another name.
What was not looked for in the other kind may fit there all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.parity.explaining.deciding.verdict import Chosen, Key
    from lockstep.parity.graph import Graph

Places = frozenset[tuple[str, str]]  # modules and operations, whatever the layer


def with_shared_ties(chosen: Mapping[Key, Chosen], graph: Graph) -> None:
    """Take out of each bug's rivals what does not fit for its other variants in like places."""
    where = {key: places(bug, graph) for key, bug in chosen.items()}
    fitting = {key: fits(bug) for key, bug in chosen.items()}
    for key, bug in chosen.items():
        like = (one for one in chosen if one[0] == key[0] and where[one] == where[key])
        limits = [some | {key[0]} for one in like if (some := fitting[one]) is not None]
        bug.rivals = [
            {one for one in some if all(one[0] in names for names in limits)} for some in bug.rivals
        ]


def fits(bug: Chosen) -> set[str] | None:
    """Return what fits in a bug's place wherever all was looked for; None if that is nowhere."""
    pieces = zip(bug.rivals, bug.complete, strict=True)
    full = [rivals for rivals, complete in pieces if complete]
    return {name for name, _ in set.intersection(*full)} if full else None


def places(bug: Chosen, graph: Graph) -> Places:
    calls = (graph.calls[number] for atom in bug.atoms for number in atom.calls)
    return frozenset((call.place, call.op) for call in calls)
