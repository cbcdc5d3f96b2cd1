"""What goes wrong between the file and the parameters: the wrong tensor, or the wrong way round."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.activation import halves_exchanged, halves_of
from lockstep.parity.faults.adapter_layers import brought_along
from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.fused_heads import (
    as_blocks,
    by_groups,
    cut_in_order,
    cut_otherwise,
    put_together,
)
from lockstep.parity.faults.rewrites import changed_input, either, only, rewrite
from lockstep.parity.faults.tensors import dense, named, reading, renamed, reweighted, same_shape
from lockstep.parity.graph import Call, Graph
from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.checkpoint.checkpoint import StoredFormat

IN_A_LAYER = re.compile(r"((?:model\.layers|transformer\.h)\.)([0-9]+)(\..+)")
HEAD = "lm_head.weight"
EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight")
CONV1D = r"(attn|mlp)\.c_(attn|proj|fc)"
NOT_CONV1D = r"(?!(attn\.c_|mlp\.c_)).*"


def turned_round(ops: Any, weight: Any) -> np.ndarray:
    """Return the transpose, of a packed matrix unpacked."""
    return (dense(ops, weight) if isinstance(weight, Packed) else weight).T


def stored_round(ops: Any, weight: Any) -> np.ndarray:
    """Read the numbers of a matrix that lies transposed as if it did not."""
    return np.ascontiguousarray(turned_round(ops, weight)).reshape(weight.shape)


def square(stored: StoredFormat) -> bool:
    return stored.shape[-1] == stored.shape[-2]


def at_zero(ops: Any, weight: Any) -> np.ndarray:
    return np.zeros(weight.shape, np.float32)


def of_layer(other: Callable[[int, int], int | None]) -> Rewrite:
    """Read the tensors of another layer: `other(layer, layers)`."""

    def elsewhere(name: str, graph: Graph) -> str | None:
        found = IN_A_LAYER.fullmatch(name)
        count = graph.config.num_hidden_layers
        layer = None if found is None else other(int(found[2]), count)
        if found is None or layer is None or not 0 <= layer < count:
            return name
        return f"{found[1]}{layer}{found[3]}"

    return reading(elsewhere)


def on(by: int) -> Callable[[int, int], int]:
    return lambda layer, count: layer + by


def partner(by: int, first: int) -> Callable[[int, int], int]:
    """Return the layer that each is exchanged with: `by` further on or back, in blocks of twice as
    many from the `first` on. One that has none keeps its own.
    """

    def other(layer: int, count: int) -> int:
        found = layer + (by if (layer - first) // by % 2 == 0 else -by)
        return found if first <= min(layer, found) and found < count else layer

    return other


def exchanged_by(by: int, first: int) -> str:
    return f"layers {by} apart exchanged, counted from {first} on"


def moved_by(by: int) -> str:
    return f"layer i has i {'+' if by > 0 else '-'} {abs(by)}"


def sorted_as_text(layer: int, count: int) -> int:
    return sorted(range(count), key=str)[layer]


@rewrite("linear", "lm_head")
def head_from_embedding(call: Call, graph: Graph) -> Call | None:
    """Multiply by the embedding's table where the model has a head of its own."""
    name = named(call.inputs[1])
    table = next((one for one in EMBEDDINGS if one in graph.stored), None)
    if name is None or table is None or name == table or not same_shape(graph, name, table):
        return None
    return call.with_input(1, renamed(call.inputs[1], table))


@rewrite("linear", "lm_head")
def head_of_the_file(call: Call, graph: Graph) -> Call | None:
    """Multiply by the head that the file has all the same, where the config ties it."""
    if named(call.inputs[1]) not in EMBEDDINGS or HEAD not in graph.unused:
        return None
    return call.with_input(1, renamed(call.inputs[1], HEAD))


def head_from_shifted_embedding(by: int) -> Rewrite:
    """Do so where the embedding's rows lie one place on, or back, too."""

    @rewrite("linear", "lm_head")
    def change(call: Call, graph: Graph) -> Call | None:
        tied = head_from_embedding(call, graph)
        return tied and tied.followed(lambda ops, logits: np.roll(logits, -by, axis=-1))

    return change


def gate_and_up(name: str, graph: Graph) -> str:
    if ".gate_proj." in name:
        return name.replace(".gate_proj.", ".up_proj.")
    return name.replace(".up_proj.", ".gate_proj.")


def apart(call: Call, graph: Graph) -> bool:
    """Say whether nothing shows that a port makes gate and up at once."""
    return halves_of(call, graph) is None


def head_by_head(columns: np.ndarray, heads: int) -> np.ndarray:
    """Return the columns of all queries, of all keys, of all values, if each head has its own."""
    return columns.reshape(heads, 3, -1).swapaxes(0, 1)


def number_by_number(columns: np.ndarray, heads: int) -> np.ndarray:
    """Return the same if each number of a head has its query, key and value side by side."""
    return np.moveaxis(columns.reshape(heads, -1, 3), -1, 0)


def columns_from(rearranged: Callable[[np.ndarray, int], np.ndarray]) -> Rewrite:
    """Read the fused columns of GPT-2 in another order: `rearranged(columns (3, H, D), heads)`."""

    @rewrite("column_block", r"attn\..*")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        width, heads = graph.input_shape(call, 0)[-1], graph.config.num_attention_heads
        order = rearranged(np.arange(width), heads).reshape(-1)
        return call.with_changed(0, lambda ops, fused: fused[..., order])

    return rewritten


def columns_stored(rearranged: Callable[[np.ndarray, int], np.ndarray]) -> Rewrite:
    """Take the columns of the fused matrix of GPT-2 in another order."""

    @rewrite("linear", r"attn\.c_attn")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        width, heads = graph.shapes[call.number][-1], graph.config.num_attention_heads
        order = rearranged(np.arange(width), heads).reshape(-1)
        return call.followed(lambda ops, fused: fused[..., order])

    return rewritten


def block_order(*blocks: int) -> Rewrite:
    return columns_from(lambda columns, heads: columns.reshape(3, -1)[list(blocks)])


# As what a port takes the parts of a matrix: which of them it then has for queries, keys, values.
ORDERS = {
    "keys, queries, values": (1, 0, 2),
    "values, keys, queries": (2, 1, 0),
    "values, queries, keys": (1, 2, 0),
    "keys, values, queries": (2, 0, 1),
    "queries, values, keys": (0, 2, 1),
}
UNEVEN = [name for name in ORDERS if not name.startswith("queries")]  # where widths tell, too


def blocks_in(*blocks: int) -> Rewrite:
    return either(block_order(*blocks), cut_otherwise(put_together(*blocks)))


def cut_in(order: str) -> Rewrite:
    parts = [("queries", "keys", "values").index(part) for part in order.split(", ")]
    return cut_otherwise(cut_in_order(*parts))


EXCHANGED = {
    exchanged_by(by, first): partner(by, first) for by in (1, 2) for first in (0, by)
}  # fmt: skip
ELSEWHERE = {moved_by(by): on(by) for by in (1, -1, 2, -2, 3, -3)} | EXCHANGED


FAULTS = (
    Fault(
        id="weight-square-transposed",
        wrong="y = W^T x, where W is square",
        right="y = W x",
        symptom="one projection is noise, and no shape check sees it",
        where="that projection",
        fix="rows of a stored weight are outputs; do not transpose what is stored that way",
        variants={"": reweighted(turned_round, square, NOT_CONV1D)},
    ),
    Fault(
        id="gpt2-conv1d-transposed",
        wrong="the stored (inputs, outputs) taken for (outputs, inputs)",
        right="y = x W, as Conv1D stores it",
        symptom="garbage; a crash where widths differ and nothing is reshaped",
        where="attn.c_proj",
        fix="transpose c_attn, c_proj and c_fc when they are loaded into a linear layer",
        variants={"": reweighted(stored_round, lambda stored: True, CONV1D)},
    ),
    Fault(
        id="fused-qkv-layout",
        wrong="fused queries, keys and values cut head by head, or in another order",
        right="one behind the other: all queries, all keys, all values",
        symptom="fluent English from scrambled attention",
        where="attn.c_proj, or self_attn.q_proj where the port fuses what the file has apart",
        fix="cut the fused matrix as it is put together: all queries, all keys, all values",
        evidence=("lablup/mlxcel#928", "elixir-nx/bumblebee#204", "Lightning-AI/litgpt#1013"),
        variants={
            "head by head": columns_from(head_by_head),
            "head by head, in the weights": columns_stored(head_by_head),
            "number by number": columns_from(number_by_number),
            **{name: blocks_in(*blocks) for name, blocks in ORDERS.items()},
            **{f"{name}, cut as these": cut_in(name) for name in UNEVEN},
            "all, cut group by group": cut_otherwise(by_groups),
            "group by group, cut as all": cut_otherwise(as_blocks),
        },
        whole=(
            *ORDERS,
            *(f"{name}, cut as these" for name in UNEVEN),
            "all, cut group by group",
            "group by group, cut as all",
        ),
    ),
    Fault(
        id="fused-gate-up-order",
        wrong="gate_proj holds the rows of up_proj, and the other way round",
        right="the first half of a fused matrix is the gate",
        symptom="garbage",
        where="mlp.gate_proj",
        fix="exchange the halves when gate_up_proj is cut",
        variants={"": either(halves_exchanged, only(apart, reading(gate_and_up)))},
    ),
    Fault(
        id="tied-head-mishandled",
        wrong="the head is another matrix than tie_word_embeddings says, or was never filled",
        right="the head as tie_word_embeddings says",
        symptom="garbage logits, though every hidden state is exact",
        where="lm_head",
        fix="follow tie_word_embeddings: tie after loading, or load lm_head.weight",
        evidence=(
            "ml-explore/mlx-lm#440",
            "ml-explore/mlx-lm#373",
            "ml-explore/mlx-lm@ab2e36c6",
        ),
        variants={
            "the embedding": head_from_embedding,
            "the embedding, which is one row on": head_from_shifted_embedding(1),
            "the embedding, which is one row back": head_from_shifted_embedding(-1),
            "zeros": rewrite("linear", "lm_head")(reweighted(at_zero)),
            "the head that the file has, though the config ties it": head_of_the_file,
        },
    ),
    Fault(
        id="strict-false-drops-tensors",
        wrong="a parameter keeps what it was made with: 0 in a matrix, 1 in a gain",
        right="the tensor of the checkpoint",
        symptom="one module does nothing, or does it without its gain",
        where="the first module that was not loaded",
        fix="load strictly, and look at missing and unexpected keys",
        evidence=("Lightricks/LTX-2#172", "elixir-nx/bumblebee#278"),
        variants={
            "matrices of 0": reweighted(at_zero, lambda stored: True, r"(?!lm_head).*"),
            "gains of 1": changed_input(
                ("rms_norm", "layer_norm", "gain"), 1, lambda ops, gain: np.ones_like(gain)
            ),
            "gains of 1, biases of 0": rewrite("layer_norm")(
                lambda call, graph: call.with_changed(
                    1, lambda ops, gain: np.ones_like(gain)
                ).with_changed(2, lambda ops, bias: np.zeros_like(bias))
            ),
        },
    ),
    Fault(
        id="layers-swapped",
        wrong="layer i has the weights of another layer",
        right="layer i has the weights of layer i",
        symptom="plausible but worse text; layers before the first wrong one are exact",
        where="the first layer with another's weights",
        fix="take layer numbers from the names of the tensors as numbers, not in textual order",
        variants={
            **{name: of_layer(other) for name, other in ELSEWHERE.items()},
            **{
                f"{name}, with its adapter": brought_along(of_layer(other), other)
                for name, other in ELSEWHERE.items()
            },
            "counted from the end": of_layer(lambda layer, count: count - 1 - layer),
            "sorted as text": of_layer(sorted_as_text),
        },
        whole=tuple(f"{name}, with its adapter" for name in ELSEWHERE),
        pairs=EXCHANGED | {f"{name}, with its adapter": one for name, one in EXCHANGED.items()},
    ),
)
