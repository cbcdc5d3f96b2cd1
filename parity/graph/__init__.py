"""The dataflow graph of a forward pass: what is computed from what, and how to compute it again.

`record` walks a model on shapes, `Graph.piece` cuts the graph at what a port dumped, `Evaluator`
computes a piece from the port's own values, rightly or with some calls rewritten.
"""

from lockstep.parity.graph.call import (
    Again,
    Call,
    Conflict,
    Constant,
    Derived,
    Ref,
    Tensor,
    Value,
    again,
    rerooted,
    with_again,
)
from lockstep.parity.graph.evaluator import Evaluator
from lockstep.parity.graph.graph import Graph
from lockstep.parity.graph.recording import record

__all__ = [
    "Again",
    "Call",
    "Conflict",
    "Constant",
    "Derived",
    "Evaluator",
    "Graph",
    "Ref",
    "Tensor",
    "Value",
    "again",
    "record",
    "rerooted",
    "with_again",
]
