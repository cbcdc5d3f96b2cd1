"""Ports that dump what attention gives before its heads are merged: then it has heads of its own.

Brought into the shape of the merged tap it would be right whatever the port's merge does, and the
merge would lie in no piece.
"""

from __future__ import annotations

from dataclasses import replace

from lockstep.parity.graph import Graph
from lockstep.parity.naming.align import Alignment, Shape, move_between

UNMERGED = "heads and tokens swapped, heads merged"


def with_unmerged(graph: Graph, sides: Alignment, wanted: dict[str, Shape]) -> Graph:
    """Return the graph with the taps of merged heads before the merge, where a dump has them so.

    `wanted` says which shape each tap has in the pass of the prompt.
    """
    calls = list(graph.calls)
    for tap, number in graph.taps.items():
        call = calls[number]
        if call.op == "merge_heads" and is_unmerged(sides, tap, wanted[tap]):
            [source] = graph.sources(number)
            calls[number] = replace(call, taps=tuple(one for one in call.taps if one != tap))
            calls[source] = replace(calls[source], taps=(*calls[source].taps, tap))
    return graph if calls == [*graph.calls] else replace(graph, calls=tuple(calls), rewritten={})


def is_unmerged(sides: Alignment, tap: str, wanted: Shape) -> bool:
    if tap not in sides.names:
        return False
    move = move_between(sides.dump.shapes[sides.names[tap]], wanted)
    return move is not None and move.endswith(UNMERGED)
