"""Where a model puts keys and values into its cache: the values of its graph that lie there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lockstep.parity.graph import Call, Graph, Value
from lockstep.parity.naming.names import CACHED

STORED = ("attention_scores", "attention_context")  # whose second input is keys, and values
WINDOW = ("softmax", 1)  # what takes a mask, and where


@dataclass(frozen=True)
class Kept:
    """One tensor of a layer's cache: its tap, what is stored there, and what the layer sees."""

    tap: str
    number: int
    layer: int
    window: int | None
    heads: int  # of queries


def kept_in(graph: Graph) -> dict[str, Kept]:
    """Return what each layer stores, by tap; nothing of a layer that takes another's."""
    found: dict[str, Kept] = {}
    taken: set[int] = set()
    for call in graph.calls:
        if call.op not in STORED or call.layer is None:
            continue
        ref = call.inputs[1]
        if not isinstance(ref, Value) or ref.number in taken:
            continue
        taken.add(ref.number)
        tap = f"{path_of(call, graph)}{CACHED[STORED.index(call.op)]}"
        heads = graph.input_shape(call, 0)[1]
        found[tap] = Kept(tap, ref.number, call.layer, window_of(call.layer, graph), heads)
    return found


def path_of(call: Call, graph: Graph) -> str:
    """Return the path of an attention, by the tap of its scores or its probabilities."""
    named = call if call.op == STORED[0] else graph.source(call, 0)
    return named.taps[0].rpartition(".")[0]


def window_of(layer: int, graph: Graph) -> int | None:
    op, index = WINDOW
    softmax = next(one for one in graph.calls if one.op == op and one.layer == layer)
    return graph.source(softmax, index).options["window"]


def with_caches(graph: Graph, taps: Iterable[str] | Mapping[str, object]) -> Graph:
    """Let what is stored in caches have their taps too, as far as they were dumped."""
    kept = kept_in(graph)
    names: dict[int, tuple[str, ...]] = {}
    for tap in taps:
        if tap in kept:
            names[kept[tap].number] = (*names.get(kept[tap].number, ()), tap)
    if not names:
        return graph
    calls = tuple(
        replace(call, taps=(*call.taps, *names.get(call.number, ()))) for call in graph.calls
    )
    return replace(graph, calls=calls)
