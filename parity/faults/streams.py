"""Where the stream stands in a layer."""

from lockstep.parity.graph import Call, Graph, Ref


def into_layer(call: Call, graph: Graph) -> Ref | None:
    """Return the stream as attention found it, in the layer of a call."""
    added = next((one for one in graph.at("residual", call.layer) if one.op == "add"), None)
    return None if added is None else added.inputs[0]
