"""Variants of one bug in like places are one bug: what fits as well must fit wherever it is.

A scale of sliding layers and one of full layers may both be wrong in the same way. What does the
same to the one kind and not to the other would be a bug more, and not the same with another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.parity.explaining.deciding.verdict import Chosen, Key
    from lockstep.parity.graph import Graph

Places = frozenset[tuple[str, str]]  # modules and operations, whatever the layer


def with_shared_ties(chosen: Mapping[Key, Chosen], graph: Graph) -> None:
    """Take out of each bug's rivals what is no rival of its other variants in like places."""
    where = {key: places(bug, graph) for key, bug in chosen.items()}
    ties = {key: {name for name, _ in bug.ties} for key, bug in chosen.items()}
    for key, bug in chosen.items():
        others = [one for one in chosen if one[0] == key[0] and where[one] == where[key]]
        shared = set.intersection(*(ties[one] for one in others)) | {key[0]}
        bug.rivals = [{one for one in some if one[0] in shared} for some in bug.rivals]


def places(bug: Chosen, graph: Graph) -> Places:
    calls = (graph.calls[number] for atom in bug.atoms for number in atom.calls)
    return frozenset((call.place, call.op) for call in calls)
