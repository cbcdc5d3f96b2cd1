"""What goes wrong with the embedding, of tokens, of positions and of layers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.loading import EMBEDDINGS
from lockstep.parity.faults.passes import begins
from lockstep.parity.faults.rewrites import (
    afterwards,
    changed_input,
    either,
    instead,
    option,
    rewrite,
    skipped,
)
from lockstep.parity.faults.tensors import Kept, dense
from lockstep.parity.graph import Call, Graph
from lockstep.reference.precision import accumulator, dtype_named, rounded

EMBEDDING = r"model\.embed_tokens"
OF_LAYERS = r"model\.embed_tokens_per_layer"
PROJECTED = r"model\.per_layer_projection_norm"
SUMMED = r"model\.per_layer_inputs"
TABLES = (EMBEDDING, r"transformer\.wte")
NARROW = ("uint8", "int8", "uint16", "int16")
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048)


def wide_factor(ops, x, *, by):
    """Multiply by the factor as it is, and round the product alone."""
    work = accumulator(x.dtype)
    return rounded(x.astype(work) * work.type(by), x.dtype)


def scaled_in(name):
    """Multiply in half precision what is not kept in it: the value, the factor, the product."""

    def scaled(ops, x, *, by):
        return ops.scale(x.astype(dtype_named(name)), by=by).astype(x.dtype)

    return scaled


def scaled_again(ops, x, *, by):
    return ops.scale(ops.scale(x, by=by), by=by)


def held_in(name):
    return lambda by: float(np.asarray(by).astype(dtype_named(name)))


@rewrite("embedding", *TABLES)
def scaled_anyway(call: Call, graph: Graph) -> Call | None:
    """Multiply rows by the root of their width, in a model that does not."""
    if any(one.op == "scale" for one in graph.at(call.place, call.layer)):
        return None
    by = graph.shapes[call.number][-1] ** 0.5
    return call.followed(lambda ops, rows: ops.scale(rows, by=by))


def head_of_scaled_table() -> Rewrite:
    """Multiply the logits by what the embedding is multiplied by, where both are one table."""

    @rewrite("linear", "lm_head")
    def change(call: Call, graph: Graph) -> Call | None:
        scales = [one for one in graph.at("model.embed_tokens", None) if one.op == "scale"]
        if not scales or "embed_tokens" not in (call.tensor(1) or ""):
            return None
        by = scales[0].options["by"]
        return call.followed(lambda ops, logits: ops.scale(logits, by=by))

    return change


def reshaped_table(ops, table):
    """Take the table's numbers for those of its transpose."""
    rows, columns = table.shape
    numbers = table if isinstance(table, np.ndarray) else dense(ops, table)
    return numbers.reshape(columns, rows).T


def next_row(ops, tokens, table, *, by):
    return (tokens + by) % table.shape[0]


def narrowed(kind: str) -> Callable[..., Any]:
    """Look up what an id becomes in fewer bits; a negative one counts from the table's end."""
    return lambda ops, tokens, table, *, by: tokens.astype(kind).astype(int) % table.shape[0]


def later_position(ops, positions, table, *, by):
    return np.clip(positions + by, 0, table.shape[0] - 1)


def looked_up_in(kind: str) -> Rewrite:
    """Narrow ids, where the table has more rows than so few bits count."""
    rewritten = shifted(narrowed(kind), 0, *TABLES)

    def change(call: Call, graph: Graph) -> Call | None:
        stored = graph.stored.get(call.tensor(1) or "") if call.op == "embedding" else None
        enough = stored is not None and stored.shape[0] <= np.iinfo(kind).max + 1
        return None if call.op != "embedding" or enough else rewritten(call, graph)

    return change


def shifted(index, by, *places) -> Rewrite:
    """Look another row up: `index(ops, ids, table, by=by)`."""
    return rewrite("embedding", *places)(
        lambda call, graph: call.with_changed(
            0, lambda ops, ids, table: index(ops, ids, table, by=by), call.inputs[1]
        )
    )


def is_tied(graph: Graph) -> bool:
    """Say whether the head multiplies by the embedding's table."""
    return any(one.tensor(1) in EMBEDDINGS for one in graph.at("lm_head", None))


def table_shifted(by) -> Rewrite:
    """Look another row up, and give each id the logit of that row, since both are of one table."""
    both = either(
        shifted(next_row, by, *TABLES),
        afterwards("linear", lambda ops, logits: np.roll(logits, -by, axis=-1), "lm_head"),
    )

    def change(call: Call, graph: Graph) -> Call | None:
        new = both(call, graph)
        return new if new is not None and is_tied(graph) else None

    return change


SHIFTED_TABLES = {f"row t {by:+d}, of the head too": table_shifted(by) for by in (1, -1)}


def other_block(step) -> Rewrite:
    """Give each layer the input of a neighbour."""

    @rewrite("column_block", "per_layer_projection")
    def change(call: Call, graph: Graph) -> Call | None:
        block, blocks = call.options["block"], call.options["blocks"]
        return call.with_options(block=(block + step) % blocks) if blocks > 1 else None

    return change


def of_first_chunk(size) -> Rewrite:
    """Give the tokens of every chunk of a prefill the inputs of the first chunk's."""

    @rewrite("column_block", "per_layer_projection")
    def change(call: Call, graph: Graph) -> Call | None:
        if graph.input_shape(call, 0)[1] <= size:
            return None
        return call.with_changed(0, lambda ops, x: x[:, np.arange(x.shape[1]) % size])

    return change


@rewrite("column_block", "per_layer_projection")
def inputs_of_the_first(call: Call, graph: Graph) -> Call | None:
    """Give the tokens of every step the inputs of the first tokens of all."""
    if not graph.steps:
        return None

    def first(ops, x):
        return x[:, np.arange(x.shape[1]) - begins(graph, x.shape[1])]

    return call.with_changed(0, first)


def every_so_many(ops, x, *, block, blocks):
    """Cut the columns as if those of all layers took turns."""
    return x[..., block::blocks]


def taking_turns(ops, rows, *, layers):
    """Read rows of (N, P) numbers as (P, N), and lay them out as (N, P)."""
    cut = rows.reshape(*rows.shape[:-1], -1, layers)
    return cut.swapaxes(-1, -2).reshape(rows.shape)


@rewrite("split_heads", PROJECTED)
def projection_takes_turns(call: Call, graph: Graph) -> Call | None:
    """Cut what is said of all layers as if they took turns, before the norm of each."""
    layers = call.options["heads"]
    return call.with_changed(0, partial(taking_turns, layers=layers)) if layers > 1 else None


@rewrite("add", SUMMED)
def table_takes_turns(call: Call, graph: Graph) -> Call | None:
    """Cut the rows of the layers' table so."""
    layers = graph.config.num_hidden_layers
    return call.with_changed(1, partial(taking_turns, layers=layers)) if layers > 1 else None


@rewrite("linear", r"model\.per_layer_model_projection")
def of_unscaled(call: Call, graph: Graph) -> Call | None:
    """Project the rows of the table as they are, before they are scaled."""
    scale = graph.source(call, 0)
    if scale.op != "scale":
        return None
    return call.with_changed(0, lambda ops, scaled, rows: rows, scale.inputs[0])


TURNS = {
    "layers take turns, in the norm too": either(projection_takes_turns, table_takes_turns),
    "layers take turns in the projection, in the norm too": projection_takes_turns,
    "layers take turns in the table": table_takes_turns,
}


FAULTS = (
    Fault(
        id="embed-scale-missing",
        wrong="h = E[t]",
        right="h = sqrt(hidden_size) E[t]",
        symptom="logits too flat; one dash or space over and over",
        where="model.embed_tokens",
        fix="multiply the embedding by the root of hidden_size",
        evidence=("Blaizzy/mlx-vlm#893",),
        variants={"": skipped("scale", EMBEDDING)},
    ),
    Fault(
        id="embed-scale-twice",
        wrong="h = hidden_size E[t], or sqrt(hidden_size) E[t] in a model without a scale",
        right="h = sqrt(hidden_size) E[t], or E[t]",
        symptom="garbage, or only where embeddings are handed in that were scaled already",
        where="model.embed_tokens",
        fix="scale once, in the embedding or in the model; and not where the model has no scale",
        evidence=("Blaizzy/mlx-vlm#906",),
        variants={
            "": option("scale", "by", lambda by: by * by, EMBEDDING),
            "one after the other": instead("scale", scaled_again, EMBEDDING),
            "once, where there is none": scaled_anyway,
        },
    ),
    Fault(
        id="embed-scale-not-rounded",
        wrong="s = sqrt(hidden_size) in another precision than the activations'",
        right="s = sqrt(hidden_size), rounded to the dtype of the activations",
        symptom="one constant ratio near 1 at the embedding, a few flipped near ties",
        where="model.embed_tokens",
        fix="hold the scale in the dtype that the model is computed in, unless it is left wide on"
        " purpose, as in LightLLM",
        evidence=("https://unsloth.ai/blog/gemma-bugs",),
        variants={
            "not rounded": instead("scale", wide_factor, EMBEDDING),
            "rounded to bfloat16": option("scale", "by", held_in("bfloat16"), EMBEDDING),
            "rounded to float16": option("scale", "by", held_in("float16"), EMBEDDING),
            "all of it in bfloat16": instead("scale", scaled_in("bfloat16"), EMBEDDING),
            "all of it in float16": instead("scale", scaled_in("float16"), EMBEDDING),
        },
    ),
    Fault(
        id="tied-head-inherits-embed-scale",
        wrong="logits = h (s E)^T",
        right="logits = h E^T",
        symptom="greedy text is unchanged, probabilities are far too sharp",
        where="lm_head",
        fix="give the head the stored table, not the scaled one",
        evidence=("ml-explore/mlx-lm#764",),
        variants={"": head_of_scaled_table()},
    ),
    Fault(
        id="embed-table-transposed",
        wrong="h = column t of the table's numbers, laid out as (hidden_size, vocabulary)",
        right="h = row t of the table (vocabulary, hidden_size)",
        symptom="gibberish, with every shape as it should be",
        where="the embedding",
        fix="do not reshape the table into its transpose: rows are tokens",
        variants={"": changed_input("embedding", 1, Kept(reshaped_table), *TABLES)},
    ),
    Fault(
        id="learned-pos-offset",
        wrong="p = P[i + n]",
        right="p = P[i]",
        symptom="text somewhat worse, or much",
        where="transformer.wpe",
        fix="begin at row 0: only OPT and BART keep two rows for something else",
        variants={
            f"{by} rows too far": shifted(later_position, by, r"transformer\.wpe") for by in (1, 2)
        },
    ),
    Fault(
        id="learned-pos-missing",
        wrong="h = E[t]",
        right="h = E[t] + P[i]",
        symptom="words in any order read alike",
        where="transformer.drop",
        fix="add the rows of the table of positions, wpe, to those of the words",
        variants={"": skipped("add", r"transformer\.drop")},
    ),
    Fault(
        id="per-layer-input-misaligned",
        wrong="layer l reads the per-layer inputs of other tokens, or of another layer",
        right="layer l reads columns l P to (l + 1) P of each token's own inputs",
        symptom="fine up to the first chunk of a prefill, or wrong everywhere",
        where="per_layer_projection",
        fix="slice the per-layer inputs by absolute position, and by layer before width",
        evidence=("Blaizzy/mlx-vlm#751", "Blaizzy/mlx-vlm#1123"),
        variants={
            "of the layer after": other_block(1),
            "of the layer before": other_block(-1),
            "layers take turns": instead("column_block", every_so_many, "per_layer_projection"),
            **TURNS,
            **{f"of the first {size} tokens": of_first_chunk(size) for size in CHUNKS},
            "of the first tokens in every step": inputs_of_the_first,
        },
        whole=("layers take turns, in the norm too",),
    ),
    Fault(
        id="ple-token-scale-missing",
        wrong="e = E_layers[t]",
        right="e = sqrt(P) E_layers[t], P the width of a layer's input",
        symptom="layers hear too little of the token itself",
        where="model.embed_tokens_per_layer",
        fix="multiply the per-layer embedding by the root of hidden_size_per_layer_input",
        variants={"": skipped("scale", OF_LAYERS)},
    ),
    Fault(
        id="ple-combine-scale-missing",
        wrong="c + e, or c of W E[t]",
        right="(c + e) / sqrt 2, c = norm(W h / sqrt(hidden_size)), h the scaled embedding",
        symptom="none to see where a norm follows",
        where="model.per_layer_inputs",
        fix="multiply the sum by 2^-0.5, and the projection by hidden_size^-0.5; project what the"
        " first layer is fed",
        variants={
            "of the sum": skipped("scale", SUMMED),
            "of the projection": skipped("scale", PROJECTED),
            "of the embedding that is projected": of_unscaled,
        },
    ),
    Fault(
        id="embedding-id-shifted",
        wrong="h = E[t + 1] or E[t - 1]",
        right="h = E[t]",
        symptom="garbage from the first layer on",
        where="the embedding",
        fix="count token ids from 0",
        variants={
            **{f"row t {by:+d}": shifted(next_row, by, *TABLES) for by in (1, -1)},
            **SHIFTED_TABLES,
        },
        throughout=SHIFTED_TABLES,
    ),
    Fault(
        id="embedding-ids-narrowed",
        wrong="h = E[t mod 2^n], or t - 2^n of the upper half, counted from the end",
        right="h = E[t]",
        symptom="common words are right, others are not",
        where="the embedding",
        fix="keep token ids in 32 bits, or as many as the vocabulary needs",
        variants={kind: looked_up_in(kind) for kind in NARROW},
    ),
)  # fmt: skip
