"""Adapters on other layers than their own: how layers are counted, and what moves with a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.tensors import once, root_of
from lockstep.parity.graph import Call, Constant, Graph, Ref, rerooted
from lockstep.reference.precision import rounded

# Where an operation takes the two factors.
FACTORS = {"add_lora": (2, 3), "add_lora_rows": (2, 3), "dora_rescale": (3, 4)}
MAGNITUDE = 5  # where `dora_rescale` takes the lengths of rows


class Adapter(NamedTuple):
    """What a module is adapted by; `magnitude` are the lengths that DoRA gives its rows."""

    a: Constant
    b: Constant
    scale: float
    magnitude: Constant | None
    is_room: bool  # it only keeps a place for another one: no trained one is of noughts alone

    @classmethod
    def of(cls, adds: Call, graph: Graph) -> Adapter:
        """Return what a call of `add_lora` adapts a module by."""
        a, b = (factor_of(adds.inputs[index]) for index in FACTORS["add_lora"])
        is_room = not (a.value.any() or b.value.any())
        return cls(a, b, adds.options["scale"], magnitude_of(adds, graph), is_room)


class Placed(NamedTuple):
    """The adapter of each adapted module, by its place and layer; the layers of trained ones."""

    adapters: dict[tuple[str, int], Adapter]
    layers: set[int]


def factor_of(ref: Ref) -> Constant:
    """Return a factor of an adapter, however it is changed."""
    root = root_of(ref)
    if not isinstance(root, Constant):
        raise TypeError("no factor of an adapter")
    return root


def rank_of(call: Call) -> int:
    """Return the rank of what a call adapts by."""
    return factor_of(call.inputs[FACTORS[call.op][0]]).value.shape[0]


def without_length(ops: Any, y: Any, weight: Any, bias: Any, *rest: Any, scale: float) -> Any:
    """Leave the rows of an adapted weight as long as they are, and add the bias."""
    return y if bias is None else y + rounded(bias, y.dtype)


@once
def placed_adapters(graph: Graph) -> Placed:
    """Return the adapters of a graph; every factor is read through for that."""
    adapters = {
        (call.place, call.layer): Adapter.of(call, graph)
        for call in graph.calls
        if call.op == "add_lora" and call.layer is not None
    }
    return Placed(adapters, {layer for (_, layer), one in adapters.items() if not one.is_room})


def magnitude_of(adds: Call, graph: Graph) -> Constant | None:
    later = (graph.calls[one] for one in graph.consumers[adds.number])
    found = (factor_of(one.inputs[MAGNITUDE]) for one in later if one.op == "dora_rescale")
    return next(found, None)


def of_layer(source: Callable[[int, int, set[int]], int]) -> Rewrite:
    """Apply the adapter of another layer: `source(layer, layers, adapted layers)`.

    A layer that gets none is left as the base has it, and one that has none may get one.
    """

    def rewritten(call: Call, graph: Graph) -> Call | None:
        if call.layer is None or call.op not in ("linear", "add_lora", "dora_rescale"):
            return None
        adapters, layers = placed_adapters(graph)
        own = adapters.get((call.place, call.layer))
        if (own is None) == (call.op != "linear") or not adapters:
            return None
        wanted = source(call.layer, graph.config.num_hidden_layers, layers)
        other = trained(adapters.get((call.place, wanted)))
        if other is trained(own) or not (other is None or fits(call, graph, other)):
            return None
        if call.op == "linear":
            return None if other is None else call.replaced(adapted(other))
        if own is None or other is None:
            return unadapted(call)
        return by_adapter(call, own, other)

    return rewritten


def trained(adapter: Adapter | None) -> Adapter | None:
    return None if adapter is None or adapter.is_room else adapter


def unadapted(call: Call) -> Call:
    """Return what adds an adapter, or gives rows their lengths, without it."""
    return call.with_options(scale=0.0) if call.op == "add_lora" else call.replaced(without_length)


def by_adapter(call: Call, own: Adapter, other: Adapter) -> Call | None:
    """Return what adds an adapter, or gives rows their lengths, with another one.

    One without lengths leaves rows as they are. None if it has some, and nothing gives them here.
    Whoever scales them wrongly scales whatever comes here so.
    """
    if call.op == "add_lora" and own.magnitude is None and other.magnitude is not None:
        return None
    if call.op == "dora_rescale" and other.magnitude is None:
        return call.replaced(without_length)
    share = call.options["scale"] / own.scale if own.scale else 1.0
    new = call.with_options(scale=other.scale * share)
    for index, factor in zip(FACTORS[call.op], (other.a, other.b), strict=True):
        new = new.with_input(index, rerooted(new.inputs[index], factor))
    if other.magnitude is None or call.op == "add_lora":
        return new
    return new.with_input(MAGNITUDE, rerooted(new.inputs[MAGNITUDE], other.magnitude))


def fits(call: Call, graph: Graph, other: Adapter) -> bool:
    matrix = call if call.op == "linear" else graph.source(call, 0)
    while matrix.op != "linear":
        matrix = graph.source(matrix, 0)
    columns, rows = graph.input_shape(matrix, 0)[-1], graph.shapes[matrix.number][-1]
    return (other.a.value.shape[1], other.b.value.shape[0]) == (columns, rows)


def adapted(by: Adapter) -> Callable[..., Any]:
    factors = by.a.value, by.b.value

    def linear(ops: Any, x: Any, weight: Any, bias: Any) -> Any:
        y = ops.linear(x, weight, None if by.magnitude is not None else bias)
        y = ops.add_lora(y, x, *factors, scale=by.scale)
        if by.magnitude is None:
            return y
        return ops.dora_rescale(y, weight, bias, *factors, by.magnitude.value, scale=by.scale)

    return linear


def brought_along(weights: Rewrite, other: Callable[[int, int], int]) -> Rewrite:
    """Change the weights, and bring the adapter of another layer, `other(layer, layers)`, if there
    are any.
    """

    def there(layer: int, count: int, adapted: set[int]) -> int:
        found = other(layer, count)
        return found if 0 <= found < count else layer

    def rewritten(call: Call, graph: Graph) -> Call | None:
        if not placed_adapters(graph).adapters:
            return None
        new = weights(call, graph)
        return of_layer(there)(new or call, graph) or new

    return rewritten


def offset(by: int) -> Rewrite:
    return of_layer(lambda layer, count, adapted: layer - by)


def from_the_first(layer: int, count: int, adapted: set[int]) -> int:
    """Let the adapters of the last layers begin at layer 0."""
    return layer + min(adapted)


def of_other_module(pairs: dict[str, str]) -> Rewrite:
    """Give modules the adapters of other modules of their layer, where those fit."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        if call.layer is None or call.op != "add_lora" or call.place not in pairs:
            return None
        adapters, _ = placed_adapters(graph)
        own, other = (adapters.get((one, call.layer)) for one in (call.place, pairs[call.place]))
        if trained(own) is None or trained(other) is None or own.magnitude or other.magnitude:
            return None
        return by_adapter(call, own, other) if fits(call, graph, other) else None

    return rewritten


def exchanged_with(one: str, other: str) -> Rewrite:
    return of_other_module({one: other, other: one})


COUNTED_OTHERWISE = {
    "one layer late": offset(1),
    "one layer early": offset(-1),
    "on the first layers": of_layer(from_the_first),
    "counted from the end": of_layer(lambda layer, count, adapted: count - 1 - layer),
    "the first one's on all": of_layer(
        lambda layer, count, adapted: min(adapted) if layer in adapted else layer
    ),
}
