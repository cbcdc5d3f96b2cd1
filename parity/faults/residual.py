"""What goes wrong with the stream: where layers read from it and what they add to it."""

from lockstep.parity.faults.expert_inputs import OF_DENSE, gives, reading
from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.layer_scalars import (
    BRANCH,
    SCALED,
    STREAM,
    elsewhere,
    going_in,
    left_out,
    one_more,
    one_side,
    said_by_attention,
    taken_twice,
)
from lockstep.parity.faults.norms import as_wide
from lockstep.parity.faults.rewrites import NORMS, instead, rewrite, skipped
from lockstep.parity.faults.streams import into_layer
from lockstep.parity.graph import Call, Graph, Value

BESIDE = "post_feedforward_layernorm"  # whose input is what the MLP and the experts say
SUMS = ("residual", "per_layer_input_gate", SCALED)


def side_into_norm(side: int, *places: str) -> Rewrite:
    """Normalise one side of a sum alone: 0 is the stream as it was, 1 what is added to it."""

    @rewrite(NORMS)
    def change(call: Call, graph: Graph) -> Call | None:
        source = graph.calls[call.number].inputs[0]
        added = graph.calls[source.number] if isinstance(source, Value) else None
        if added is None or added.op != "add" or added.place not in places:
            return None
        return call.with_input(0, added.inputs[side])

    return change


def is_layer(call: Call) -> bool:
    """Say whether a call gives a layer's own result."""
    return call.place == SCALED and call.layer is not None


def layer_left_out(call: Call, graph: Graph) -> Call | None:
    """Take what went into the layer before, and not what came out of it."""
    new = call
    for index, ref in enumerate(graph.calls[call.number].inputs):
        source = graph.calls[ref.number] if isinstance(ref, Value) else None
        if source is not None and is_layer(source) and source.layer != call.layer:
            before = into_layer(source, graph)
            new = new if before is None else new.with_input(index, before)
    return None if new is call else new


@rewrite("add", SCALED)
def stream_from_before(call: Call, graph: Graph) -> Call | None:
    """Add the MLP's branch to what went into the layer."""
    stream = graph.calls[call.number].inputs[0]
    before = graph.calls[stream.number] if isinstance(stream, Value) else None
    if before is None or (before.op, before.place, before.layer) != ("add", "residual", call.layer):
        return None
    return call.with_input(0, before.inputs[0])


@rewrite("add", "residual", SCALED)
def normed_stream(call: Call, graph: Graph) -> Call | None:
    """Add to what the branch's norm makes of the stream, and not to the stream."""
    stream = graph.calls[call.number].inputs[0]
    takers = graph.consumers[stream.number] if isinstance(stream, Value) else ()
    norms = (one for one in takers if graph.calls[one].op in ("rms_norm", "layer_norm"))
    norm = next((one for one in norms if graph.calls[one].layer == call.layer), None)
    return None if norm is None else call.with_changed(0, as_wide, Value(norm))


@rewrite("add", "residual", SCALED)
def stream_over_its_root(call: Call, graph: Graph) -> Call | None:
    """Add to the stream over its root mean square, as a norm in place leaves it before its gain."""
    stream = graph.calls[call.number].inputs[0]
    takers = graph.consumers[stream.number] if isinstance(stream, Value) else ()
    norms = (graph.calls[one] for one in takers if graph.calls[one].layer == call.layer)
    norm = next((one for one in norms if one.op == "rms_norm"), None)
    if norm is None:
        return None
    eps = norm.options["eps"]
    return call.with_changed(0, lambda ops, own, x: ops.unit_norm(x, eps=eps), stream)


FAULTS = (
    Fault(
        id="parallel-residual-as-sequential",
        wrong="x + attn(norm(x)) + mlp(norm(x))",
        right="h + mlp(norm(h)), h = x + attn(norm(x)); or the other way round in GPT-NeoX",
        symptom="text worse, or garbage",
        where="the input of the MLP's norm",
        fix="let the MLP read the stream after attention was added",
        evidence=("elixir-nx/bumblebee#204", "antonellof/ferrox#232"),
        variants={"parallel for sequential": side_into_norm(0, "residual")},
    ),
    Fault(
        id="residual-missing",
        wrong="attn(norm(x)), or mlp(norm(h))",
        right="x + attn(norm(x)), h + mlp(norm(h))",
        symptom="garbage: each layer forgets what all before it said",
        where="residual, or the layer's output",
        fix="add what attention and the MLP return to the stream that went into their norm",
        variants={
            "": instead("add", lambda ops, stream, branch: branch, *SUMS),
            "into the next norm alone": side_into_norm(1, *SUMS),
            "into the MLP's norm alone, as attention gives it": reading(
                "rms_norm", gives("self_attn.o_proj"), OF_DENSE
            ),
        },
    ),
    Fault(
        id="residual-counted-twice",
        wrong="2 x + attn(norm(x)), or so behind the MLP",
        right="x + attn(norm(x))",
        symptom="the stream grows, and what later layers add is lost in it",
        where="residual",
        fix="add the stream once: inside of the module, or behind it",
        variants={"": instead("add", lambda ops, x, branch: ops.add(x, ops.add(x, branch)), *SUMS)},
    ),
    Fault(
        id="branch-not-added",
        wrong="x, where attention, the MLP or the experts were computed for nothing",
        right="x + attn(norm(x)), h + mlp(norm(h))",
        symptom="a model that sees no other token, or knows nothing",
        where="residual, or the layer's output",
        fix="add what the module returns to the stream",
        variants={
            "": skipped("add", *SUMS),
            "the experts' beside a dense MLP": skipped("add", BESIDE),
            "the dense MLP's beside experts": instead("add", lambda ops, x, said: said, BESIDE),
        },
    ),
    Fault(
        id="residual-from-before-attention",
        wrong="x + mlp(norm(h)), h = x + attn(norm(x))",
        right="h + mlp(norm(h))",
        symptom="what attention says is heard by the MLP of its own layer alone",
        where="the layer's output",
        fix="add the MLP's branch to the stream that it was computed from",
        variants={"": stream_from_before},
    ),
    Fault(
        id="layer-left-out",
        wrong="the stream goes past a layer",
        right="each of num_hidden_layers layers, one after the other",
        symptom="text a little worse: most layers change little",
        where="what takes the layer's output",
        fix="count the loop over the layers: from 0, and to the last one",
        variants={"": layer_left_out},
        whole=("",),
        behind=True,
    ),
    Fault(
        id="residual-from-normed-stream",
        wrong="norm(x) + attn(norm(x)), or so behind the MLP",
        right="x + attn(norm(x))",
        symptom="the stream forgets what earlier layers said of its size",
        where="residual",
        fix="keep the stream from before the norm, and add to that",
        variants={"": normed_stream, "without its gain": stream_over_its_root},
    ),
    Fault(
        id="layer-scalar-missing",
        wrong="h, a part of it times layer_scalar, or h times another number",
        right="h * layer_scalar",
        symptom="the stream grows from layer to layer; fluent nonsense",
        where="the layer's output",
        fix="multiply each layer's whole output, residual included, by its layer_scalar",
        variants={
            "": left_out,
            "on the branch alone": one_side(BRANCH),
            "on the stream alone": one_side(STREAM),
            "on what goes into the layer": elsewhere(going_in),
            "on what attention says": elsewhere(said_by_attention),
            "twice": taken_twice,
            "1 more than it is": one_more,
        },
        whole=("on what goes into the layer", "on what attention says"),
    ),
)
