"""Which stream a router reads, and which its experts: a layer has several of one shape."""

from __future__ import annotations

from collections.abc import Callable, Collection

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.norms import as_wide
from lockstep.parity.faults.rewrites import NORMS, either, rewrite
from lockstep.parity.graph import Call, Graph, Ref, Value, again
from lockstep.parity.graph.call import EXPERTS

Source = Callable[[Call, Graph], Ref | None]

DIVIDED, GATE = r"router\.proj", r"mlp\.gate"  # how Gemma 4 and Qwen3 call a router's product
OWN_NORM = r"router\.norm"  # Gemma 4's alone
OF_EXPERTS, OF_DENSE = "pre_feedforward_layernorm_2", "pre_feedforward_layernorm"
BEHIND_DENSE, OF_ATTENTION = "post_feedforward_layernorm_1", "input_layernorm"


def reading(ops: str | Collection[str], source: Source, *places: str) -> Rewrite:
    """Let a call read another stream of its layer, if there is one of the same shape."""

    @rewrite(ops, *places)
    def change(call: Call, graph: Graph) -> Call | None:
        ref, right = source(call, graph), graph.calls[call.number].inputs[0]
        if not isinstance(ref, Value) or ref == right:
            return None
        fits = graph.shapes[ref.number] == graph.input_shape(call, 0)
        return call.with_changed(0, as_wide, ref) if fits else None

    return change


def gives(module: str) -> Source:
    """Return what a module of the same layer gives."""
    return lambda call, graph: graph.value(f"model.layers.{call.layer}.{module}")


def before_norm(call: Call, graph: Graph) -> Ref | None:
    """Return the stream whose norm should be read, if another call reads the norm too.

    Where none does, the norm is missing, which is another bug.
    """
    norm = graph.source(call, 0)
    several = norm.op in NORMS and len(graph.consumers[norm.number]) > 1
    return norm.inputs[0] if several else None


def router_reading(source: Source) -> Rewrite:
    """Let the router read another stream: before its own norm, where it has one."""
    return reading(("unit_norm", "linear"), source, OWN_NORM, GATE)


def experts_reading(source: Source) -> Rewrite:
    return reading(EXPERTS, source)


def norm_of_experts_reading(source: Source) -> Rewrite:
    """Let the experts read their norm of another stream."""
    return reading("rms_norm", source, OF_EXPERTS)


def without_norm(rewritten: Rewrite) -> Rewrite:
    """Hand on what a norm would read."""

    def change(call: Call, graph: Graph) -> Call | None:
        new = rewritten(call, graph)
        return None if new is None else new.replaced(lambda ops, x, *, eps: x)

    return change


@rewrite("linear", r"mlp\.(gate|up)_proj")
def dense_reading_theirs(call: Call, graph: Graph) -> Call | None:
    """Let the dense MLP read what the experts' norm gives, which is computed behind it."""
    norm = next(graph.at(OF_EXPERTS, call.layer), None)
    return None if norm is None else call.with_input(0, again(norm, norm.inputs[0]))


# Each norm behind the MLP and the experts gets what the other should.
CROSSED = either(
    reading("rms_norm", gives("experts"), BEHIND_DENSE),
    reading("rms_norm", gives("mlp.down_proj"), "post_feedforward_layernorm_2"),
)
normed_twice = reading("unit_norm", gives(OF_EXPERTS), OWN_NORM)


@rewrite("linear", DIVIDED)
def unscaled(call: Call, graph: Graph) -> Call:
    """Let the router project what its norm gives, without either factor."""
    return call.with_input(0, graph.source(graph.source(call, 0), 0).inputs[0])
