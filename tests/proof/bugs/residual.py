"""Bugs of the stream: what is added to it, and what is not."""

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
ATTENTION, MLP = 0, 1  # among the sums of a layer; GPT-2 has one between, of another model's states


class Bare(ast.NodeTransformer):
    """Write `x` for `residual + x` and `x + residual`, in the sum of one number."""

    def __init__(self, wanted: int):
        self.wanted, self.met = wanted, 0

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        sides = [node.left, node.right]
        rest = [one for one in sides if not (isinstance(one, ast.Name) and one.id == STREAM)]
        if not isinstance(node.op, ast.Add) or len(rest) != 1:
            return self.generic_visit(node)
        self.met += 1
        return rest[0] if self.met - 1 == self.wanted else node


def without_stream(block: nn.Module, which: int) -> Callable[..., Any]:
    """Return a layer's own forward in which one sum is without the stream."""
    own = inspect.unwrap(type(block).forward)
    text = textwrap.dedent(inspect.getsource(own))
    tree = ast.fix_missing_locations(Bare(which).visit(ast.parse(text)))
    names = dict(own.__globals__)
    exec(compile(tree, inspect.getfile(own), "exec"), names)  # the library's own source
    return MethodType(names[own.__name__], block)


@bug(
    "residual-missing",
    site="stream",
    when=traits.anywhere,
    variants={
        "of attention": {"which": ATTENTION, "layers": "all"},
        "of the MLP": {"which": MLP, "layers": "all"},
        "of attention, one layer": {"which": ATTENTION, "layers": "one"},
    },
)
def stream_missing(port: Port, which: int, layers: str) -> None:
    between = which > ATTENTION and hasattr(port.base, "h")
    for block in port.chosen(layers):
        block.forward = without_stream(block, which + between)
