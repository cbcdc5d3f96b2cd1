"""Which values attention averages, and whose keys they go with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.turns import POSITIONS
from lockstep.parity.graph import Call, Derived, Graph, Ref, Tensor, Value, again
from lockstep.parity.graph.stretched import rope, turn_of


def scores_of(call: Call, graph: Graph) -> Call:
    """Return the scores behind the probabilities that average these values."""
    return graph.source(graph.source(call, 0), 0)


def projection_of(ref: Ref, graph: Graph) -> Call:
    """Return the projection that a value is made of."""
    while isinstance(ref, Value):
        call = graph.calls[ref.number]
        if call.op == "linear":
            return call
        ref = call.inputs[0]
    raise TypeError("no projection is behind this value")


def values_are_keys(call: Call, graph: Graph) -> bool:
    """Tell whether values are made of the projection of keys, as the model wants it."""
    values = projection_of(graph.calls[call.number].inputs[1], graph)
    keys = projection_of(keys_seen(call, graph), graph)
    return values.number == keys.number and "c_attn" not in values.place


def keys_seen(call: Call, graph: Graph) -> Ref:
    return graph.calls[scores_of(call, graph).number].inputs[1]


def keys_unturned(call: Call, graph: Graph) -> Ref | None:
    keys = graph.source(scores_of(call, graph), 1)
    return keys.inputs[0] if keys.op == "rope" else None


def averaging(other: Callable[[Call, Graph], Ref | None], *, shared: bool) -> Rewrite:
    """Average something else than the values, in layers whose values are, or are not, the keys."""

    @rewrite("attention_context")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        ref = other(call, graph) if values_are_keys(call, graph) == shared else None
        if not isinstance(ref, Value) or graph.shapes[ref.number] != graph.input_shape(call, 1):
            return None
        return call.with_changed(1, lambda ops, values, other: other, ref)

    return rewritten


def values_of_normed_keys(*, turned: bool) -> Rewrite:
    """Normalise what the keys' norm gives, or what they are once turned, for values."""

    @rewrite("unit_norm", r"self_attn\.v_norm")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        calls = graph.at("self_attn.k_norm", call.layer)
        norm = next((one for one in calls if one.op == "rms_norm"), None)
        if norm is None or graph.shapes[norm.number] != graph.shapes[call.number]:
            return None
        found = as_turned(norm, graph) if turned else Value(norm.number)
        return found and call.with_changed(0, lambda ops, keys, other: other, found)

    return rewritten


def as_turned(norm: Call, graph: Graph) -> Ref | None:
    """Return what a norm of heads gives as its rope turns it, its axes as they were."""
    turn = next((one for one in graph.at("self_attn.k_rope", norm.layer) if one.op == "rope"), None)
    if turn is None:
        return None
    return Derived(lambda ops, heads: heads.swapaxes(1, 2), (Value(turn.number),))


def values_turned(*, bare: bool) -> Rewrite:
    """Turn values as the keys are turned, with whatever is wrong with that.

    Or by an operation of their own that takes the same tables.
    """

    @rewrite("attention_context")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        keys = graph.source(scores_of(call, graph), 1)
        values = call.inputs[1]
        return None if keys.op != "rope" else call.with_input(1, again(keys, values, bare=bare))

    return rewritten


@rewrite("attention_context")
def values_turned_by_place(call: Call, graph: Graph) -> Call | None:
    """Turn values by the keys' frequencies, whatever is wrong with the keys' positions and turn."""
    keys = graph.source(scores_of(call, graph), 1)
    if keys.op != "rope":
        return None
    kept = ((POSITIONS, keys.inputs[POSITIONS]),)
    right = keys.instead or rope
    return call.with_input(1, again(keys, call.inputs[1], bare=True, kept=kept, right=right))


@rewrite("attention_context")
def values_turned_rightly(call: Call, graph: Graph) -> Call | None:
    """Turn values by the keys' tables, whatever else is wrong with how the keys are turned."""
    keys = graph.source(scores_of(call, graph), 1)

    def turned(ops: Any, values: Any, *tables: Any) -> Any:
        return turn_of(keys)(ops, values, *tables)

    return None if keys.op != "rope" else call.with_changed(1, turned, *keys.inputs[1:])


def chain_to(number: int, graph: Graph) -> list[Call]:
    """Return the calls from a projection to a value, along their first inputs."""
    chain = [graph.calls[number]]
    while chain[-1].op != "linear":
        chain.append(graph.source(chain[-1], 0))
    return chain[::-1]


def own_weights(
    refs: list[Ref], donor: int | None, layer: int | None, graph: Graph
) -> list[Ref] | None:
    """Return a layer's own tensors for those of its donor; None if the checkpoint lacks one."""
    found: list[Ref] = []
    for ref in refs:
        if isinstance(ref, Tensor):
            name = ref.name.replace(f".layers.{donor}.", f".layers.{layer}.")
            if name not in graph.unused:
                return None
            ref = Tensor(name)
        found.append(ref)
    return found


def from_own_stream(index: int, *, unused: bool) -> Callable[[Call, Graph], Call | None]:
    """Project keys (or values) of this layer's own stream, with the weights of their donor.

    Or with those that lie `unused` in the checkpoint under the layer's own name.
    """

    def rewritten(call: Call, graph: Graph) -> Call | None:
        ref = graph.calls[call.number].inputs[index]
        calls = graph.at("self_attn.q_proj", call.layer)
        own = next((one for one in calls if one.op == "linear"), None)
        if own is None or not isinstance(ref, Value):
            return None
        chain = chain_to(ref.number, graph)
        if chain[0].layer == call.layer:
            return None
        widths = [len(one.inputs) - 1 for one in chain]

        def projected(ops: Any, given: Any, x: Any, *rest: Any) -> Any:
            left = iter(rest)
            for one, width in zip(chain, widths, strict=True):
                x = getattr(ops, one.op)(x, *(next(left) for _ in range(width)), **one.options)
            return x

        rest = [ref for one in chain for ref in one.inputs[1:]]
        if unused:
            rest = own_weights(rest, chain[0].layer, call.layer, graph)
        if rest is None:
            return None
        return call.with_changed(index, projected, own.inputs[0], *rest)

    return rewritten


@rewrite("attention_scores")
def shared_keys_turned_again(call: Call, graph: Graph) -> Call | None:
    """Turn the keys of another layer once more, which come turned."""
    keys = graph.source(call, 1)
    if keys.op != "rope" or keys.layer == call.layer:
        return None
    return call.with_input(1, again(keys, call.inputs[1]))
