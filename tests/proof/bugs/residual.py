"""Bugs of the stream: what is added to it, what is not, and which layers it goes through."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn

from tests.proof import traits
from tests.proof.port import Port
from tests.proof.registry import bug

STREAM = "residual"  # what every layer of transformers calls it
SITE = "stream"
ATTENTION, MLP = 0, 1  # among the sums of a layer; GPT-2 has one between, of another model's states
WHERE = {
    "of attention": {"which": ATTENTION, "layers": "all"},
    "of the MLP": {"which": MLP, "layers": "all"},
    "of attention, one layer": {"which": ATTENTION, "layers": "one"},
}
Change = Callable[[ast.BinOp, ast.expr, ast.expr], ast.AST]  # of a sum, its stream and the rest


class Otherwise(ast.NodeTransformer):
    """Write something else for `residual + x`, or `x + residual`, in the sum of one number."""

    def __init__(self, wanted: int, change: Change):
        self.wanted, self.change, self.met = wanted, change, 0

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        sides = [node.left, node.right]
        streams = [one for one in sides if isinstance(one, ast.Name) and one.id == STREAM]
        if not isinstance(node.op, ast.Add) or len(streams) != 1:
            return self.generic_visit(node)
        self.met += 1
        (rest,) = (one for one in sides if one is not streams[0])
        return self.change(node, streams[0], rest) if self.met - 1 == self.wanted else node


def with_sum(block: nn.Module, which: int, change: Change) -> Callable[..., Any]:
    """Return a layer's own forward in which one sum is another."""
    own = inspect.unwrap(type(block).forward)
    text = textwrap.dedent(inspect.getsource(own))
    tree = ast.fix_missing_locations(Otherwise(which, change).visit(ast.parse(text)))
    names = dict(own.__globals__)
    exec(compile(tree, inspect.getfile(own), "exec"), names)  # the library's own source
    return MethodType(names[own.__name__], block)


def rewrite(port: Port, which: int, layers: str, change: Change) -> None:
    between = which > ATTENTION and hasattr(port.base, "h")
    for block in port.chosen(layers):
        block.forward = with_sum(block, which + between, change)


@bug("residual-missing", site=SITE, when=traits.anywhere, variants=WHERE)
def stream_missing(port: Port, which: int, layers: str) -> None:
    rewrite(port, which, layers, lambda node, stream, rest: rest)


@bug("branch-not-added", site=SITE, when=traits.anywhere, variants=WHERE)
def branch_missing(port: Port, which: int, layers: str) -> None:
    rewrite(port, which, layers, lambda node, stream, rest: stream)


@bug("residual-counted-twice", site=SITE, when=traits.anywhere, variants=WHERE)
def stream_twice(port: Port, which: int, layers: str) -> None:
    """Add it in the module, and again behind it."""
    rewrite(
        port, which, layers,
        lambda node, stream, rest: ast.BinOp(left=stream, op=ast.Add(), right=node),
    )  # fmt: skip


@bug("layer-left-out", site="layers", stage="loop", when=traits.anywhere)
def last_left_out(port: Port) -> None:
    """End the loop over the layers one too early."""
    name = "h" if hasattr(port.base, "h") else "layers"
    setattr(port.base, name, getattr(port.base, name)[:-1])
