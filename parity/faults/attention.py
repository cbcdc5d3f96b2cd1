"""What goes wrong inside of attention: scale, heads, values, probabilities, biases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.rewrites import changed_input, either, instead, rewrite
from lockstep.parity.faults.tensors import BIAS, named, reading
from lockstep.parity.faults.values import (
    averaging,
    from_own_stream,
    keys_seen,
    keys_unturned,
    shared_keys_turned_again,
    values_of_normed_keys,
    values_turned,
    values_turned_by_place,
    values_turned_rightly,
)
from lockstep.parity.graph import Call, Constant, Graph
from lockstep.reference.precision import accumulator, dtype_named, rounded

QKV = ("q_proj", "k_proj", "v_proj", "c_attn")


def scaled(wrong: Callable[[float, int, Any], float | None]) -> Rewrite:
    """Scale scores otherwise: `wrong(scale, head width, config)`; None changes nothing."""

    @rewrite("attention_scores")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        right = call.options["scale"]
        scale = wrong(right, graph.input_shape(call, 0)[-1], graph.config)
        same = scale is None or math.isclose(scale, right)
        return None if same else call.with_options(scale=scale)

    return rewritten


def where_one(other: Callable[[int, Any], float]) -> Rewrite:
    """Scale scores that are not scaled, unless it comes to what head_dim gives."""

    def wrong(scale: float, width: int, config: Any) -> float | None:
        found = other(width, config)
        return found if scale == 1.0 and not math.isclose(found, width**-0.5) else None

    return scaled(wrong)


def where_scaled(other: Callable[[float, int, Any], float | None]) -> Rewrite:
    return scaled(
        lambda scale, width, config: None if scale == 1.0 else other(scale, width, config)
    )


def without_layer_number(scale: float, width: int, config: Any) -> float | None:
    divided = getattr(config, "scale_attn_by_inverse_layer_idx", False)
    return width**-0.5 if divided else None


@rewrite("attention_scores")
def by_layer_number(call: Call, graph: Graph) -> Call | None:
    """Divide by the layer's number, counted from 1, where a config that may ask for it does not."""
    asked = getattr(graph.config, "scale_attn_by_inverse_layer_idx", None)
    if asked is not False or not call.layer:
        return None
    return call.with_options(scale=call.options["scale"] / (call.layer + 1))


def hidden_over_heads(config: Any) -> float:
    return (config.hidden_size / config.num_attention_heads) ** -0.5


def of_derived_head(scale: float, width: int, config: Any) -> float | None:
    """Where heads share the width equally, deriving their size is no bug."""
    same = width * config.num_attention_heads == config.hidden_size
    return None if same else hidden_over_heads(config)


def of_whole_width(scale: float, width: int, config: Any) -> float | None:
    """Return what C ** -0.5 is where C is the width of the stream.

    With one head it is right, and of D * D numbers it is the scale of heads, twice.
    """
    return None if config.hidden_size in (width, width**2) else config.hidden_size**-0.5


def tiled(ops: Any, heads: Any, queries: Any) -> Any:
    """Order key heads so that query head h finds head h % G where it looks for h // (H / G)."""
    copies = queries.shape[1] // heads.shape[1]
    return np.tile(heads, (1, copies, 1, 1)) if copies > 1 else heads


@rewrite(("attention_scores", "attention_context"))
def gqa_tiled(call: Call, graph: Graph) -> Call | None:
    queries, groups = (graph.input_shape(call, index)[1] for index in (0, 1))
    return None if groups in (1, queries) else call.with_changed(1, tiled, call.inputs[0])


def in_half(name: str) -> Callable[..., Any]:
    """Round scores, exponentials, their sum and the quotient to half precision.

    What is masked has the lowest number of the port's dtype. Where half precision makes that -inf,
    a query that sees nothing has no number: exp(-inf + inf).
    """

    def wrong(ops: Any, scores: Any, mask: Any, *, masked_row: str) -> Any:
        half, work = dtype_named(name), accumulator(scores.dtype)

        def step(values: Any) -> Any:
            return rounded(values, half).astype(work)

        seen = np.where(mask, step(scores), -np.inf)
        with np.errstate(all="ignore"):
            powers = step(np.exp(step(seen - seen.max(axis=-1, keepdims=True))))
            share = step(powers / step(powers.sum(axis=-1, keepdims=True)))
        blind = ~np.broadcast_to(mask, seen.shape).any(axis=-1, keepdims=True)
        port = getattr(ops, "port_dtype", scores.dtype).name
        row = masked_row if port in ("float16", name) else "nan"
        return np.where(blind, ops.softmax(scores, mask, masked_row=row), share).astype(
            scores.dtype
        )

    return wrong


def rounded_around(name: str) -> Callable[..., Any]:
    """Round scores before the softmax and shares behind it: a kernel is wide inside."""

    def wrong(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
        half = dtype_named(name)
        shares = ops.softmax(rounded(scores, half).astype(scores.dtype), mask, **options)
        return rounded(shares, half).astype(scores.dtype)

    return wrong


def over_queries(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
    """Share each key out among the queries that see it; one that none sees is as a blind row."""
    seen = np.broadcast_to(mask, scores.shape).swapaxes(-1, -2)
    return ops.softmax(scores.swapaxes(-1, -2), seen, **options).swapaxes(-1, -2)


def over_queries_masked_after(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
    """Do the same, and mask once more: a key that no query sees stays out."""
    shared = over_queries(ops, scores, mask, **options)
    return np.where(mask, shared, shared.dtype.type(0))


def over_heads(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
    """Share each key out among the heads; what is masked stays out."""
    shared = ops.softmax(np.moveaxis(scores, 1, -1), np.ones(1, bool), **options)
    return np.where(mask, np.moveaxis(shared, -1, 1), shared.dtype.type(0))


def without_bias(chosen: Callable[[str], bool]) -> Rewrite:
    """Leave the bias of some projections out."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        if call.op not in BIAS:
            return None
        name = named(call.inputs[BIAS[call.op]])
        if name is None or not chosen(name.removesuffix(".bias").rpartition(".")[2]):
            return None
        return call.with_input(BIAS[call.op], Constant(None))

    return rewritten


def without_fused_bias(part: int) -> Rewrite:
    """Leave one third of the fused bias of GPT-2 out."""

    def change(ops: Any, bias: Any) -> Any:
        third = len(bias) // 3
        return np.where(np.arange(len(bias)) // third == part, np.zeros_like(bias), bias)

    return changed_input("linear", 2, change, r"attn\.c_attn")


def name_of_keys(name: str, graph: Graph) -> str | None:
    return name.replace(".v_proj.", ".k_proj.") if ".v_proj." in name else name


FAULTS = (
    Fault(
        id="attn-scale-should-be-one",
        wrong="scores = q k^T / sqrt(head_dim), or another width",
        right="scores = q k^T",
        symptom="attention too flat; tokens repeat",
        where="self_attn.o_proj",
        fix="use a scale of 1: the norms of queries and keys carry it",
        evidence=("mlc-ai/mlc-llm#3485",),
        variants={
            "1 / sqrt(head_dim)": scaled(
                lambda scale, width, config: width**-0.5 if scale == 1.0 else None
            ),
            "1 / sqrt(256)": where_one(lambda width, config: 1 / 16),
            "1 / sqrt(hidden_size / heads)": where_one(
                lambda width, config: hidden_over_heads(config)
            ),
            "1 / sqrt(head_dim of sliding layers)": where_one(
                lambda width, config: config.head_dim**-0.5
            ),
            "1 / sqrt(head_dim of full layers)": where_one(
                lambda width, config: getattr(config, "global_head_dim", width) ** -0.5
            ),
        },
    ),
    Fault(
        id="attn-scale-missing",
        wrong="scores = q k^T",
        right="scores = q k^T / sqrt(head_dim)",
        symptom="each token looks at a single other one",
        where="self_attn.o_proj",
        fix="divide the scores by the root of head_dim (some kernels take the scale and do not)",
        evidence=("microsoft/MInference#69",),
        variants={
            "": where_scaled(lambda scale, width, config: 1.0),
            "not divided by the layer's number": where_scaled(without_layer_number),
        },
    ),
    Fault(
        id="attn-scale-twice",
        wrong="scores = q k^T / head_dim",
        right="scores = q k^T / sqrt(head_dim)",
        symptom="attention too even; text loses its subject",
        where="self_attn.o_proj",
        fix="scale the queries or the scores, not both",
        variants={
            "": where_scaled(lambda scale, width, config: scale**2),
            "divided by the layer's number too": by_layer_number,
        },
    ),
    Fault(
        id="attn-head-dim-derived",
        wrong="head_dim = hidden_size / num_attention_heads, in the scale of the scores",
        right="head_dim as the config has it",
        symptom="attention a little too sharp or too even",
        where="self_attn.o_proj",
        fix="read head_dim from the config; hidden_size / heads is only its default",
        evidence=("ml-explore/mlx-lm@333087c8", "EricLBuehler/mistral.rs#657"),
        variants={
            "": where_scaled(of_derived_head),
            "1 / sqrt(hidden_size)": where_scaled(of_whole_width),
        },
    ),
    Fault(
        id="v-taken-from-k",
        wrong="context = probs k",
        right="context = probs v",
        symptom="an instruction model runs wild, a base model is hardly worse",
        where="self_attn.v_proj, or self_attn.o_proj if keys are averaged",
        fix="project and cache values of their own; keys serve for both only with attention_k_eq_v",
        evidence=("ikawrakow/ik_llama.cpp#1592",),
        variants={
            "keys as they are cached": averaging(keys_seen, shared=False),
            "keys before their turn": averaging(keys_unturned, shared=False),
            "the weights of k_proj": reading(name_of_keys, r"self_attn\.v_proj"),
        },
    ),
    Fault(
        id="v-from-normed-keys",
        wrong="v = norm_k(k), or the turned keys",
        right="v = norm without gain of what v_proj gives, or k_proj where it serves for both",
        symptom="full layers gather the wrong thing",
        where="self_attn.v_norm of full layers",
        fix="branch values off right behind their projection, before k_norm and rope",
        variants={
            "normed keys": averaging(keys_unturned, shared=True),
            "turned keys": averaging(keys_seen, shared=True),
            "normed keys, normed again": values_of_normed_keys,
        },
    ),
    Fault(
        id="rope-applied-to-v",
        wrong="v turns as k does",
        right="v is not turned",
        symptom="worse with every position",
        where="self_attn.o_proj",
        fix="rotate queries and keys alone",
        variants={
            "": values_turned(bare=False),
            "by the tables of the keys": values_turned(bare=True),
            "by the frequencies of the keys, each token by its place": values_turned_by_place,
            "as keys should turn": values_turned_rightly,
        },
    ),
    Fault(
        id="kv-sharing-ignored",
        wrong="a layer that takes keys of another one projects them from its own stream, or turns"
        " them once more",
        right="it takes keys and values of the last layer of its kind that has any",
        symptom="the first tokens differ already; with a cache it may be right",
        where="self_attn.o_proj of the first sharing layer",
        fix="hand the donor layer's keys and values on, not its projections",
        evidence=("ml-explore/mlx-swift-lm#333", "ml-explore/mlx-lm#323"),
        variants={
            "keys and values": either(
                rewrite("attention_scores")(from_own_stream(1, unused=False)),
                rewrite("attention_context")(from_own_stream(1, unused=False)),
            ),
            "keys and values, by weights that nothing uses": either(
                rewrite("attention_scores")(from_own_stream(1, unused=True)),
                rewrite("attention_context")(from_own_stream(1, unused=True)),
            ),
            "keys turned once more": shared_keys_turned_again,
        },
    ),
    Fault(
        id="gqa-tile-vs-repeat",
        wrong="query head h looks at key head h mod G",
        right="query head h looks at key head h // (H / G)",
        symptom="garbage with the right shapes",
        where="self_attn.o_proj",
        fix="repeat each key and value head H / G times in place (repeat_interleave, not tile)",
        evidence=("nntile/nntile#347",),
        variants={"": gqa_tiled},
    ),
    Fault(
        id="softmax-low-precision",
        wrong="exponentials and their sum in half precision, or the scores and the shares",
        right="softmax in float32, cast behind it",
        symptom="noise; in float16 NaN",
        where="self_attn.o_proj",
        fix="widen the scores before the softmax",
        evidence=("huggingface/transformers#17437", "ml-explore/mlx#3119"),
        coarse=True,
        variants={
            f"{place}in {name}": instead("softmax", wrong(name))
            for place, wrong in (("", in_half), ("before and behind it ", rounded_around))
            for name in ("bfloat16", "float16")
        },
    ),
    Fault(
        id="softmax-wrong-axis",
        wrong="probabilities of a key sum to 1 over queries, or over heads",
        right="probabilities of a query sum to 1 over keys",
        symptom="garbage",
        where="self_attn.o_proj",
        fix="softmax over the last axis of (B, H, L, S)",
        acausal=True,
        variants={
            "over queries": instead("softmax", over_queries),
            "over queries, masked after": instead("softmax", over_queries_masked_after),
            "over heads": instead("softmax", over_heads),
        },
    ),
    Fault(
        id="qkv-bias-dropped",
        wrong="q, k, v = W x",
        right="q, k, v = W x + b",
        symptom="degraded text, perplexity above that of guessing",
        where="self_attn.q_proj",
        fix="load and add the biases of the projections that have them",
        evidence=("mlc-ai/mlc-llm#3494", "paiml/aprender#1606", "paiml/realizar#159"),
        variants={
            "": without_bias(lambda module: module in QKV),
            **{
                f"of {name}": without_fused_bias(part)
                for part, name in enumerate(("queries", "keys", "values"))
            },
        },
    ),
    Fault(
        id="o-proj-mlp-bias-dropped",
        wrong="W x",
        right="W x + b, behind attention and in the MLP",
        symptom="degraded text",
        where="self_attn.o_proj, mlp",
        fix="load and add the biases of the projections that have them",
        evidence=("mlc-ai/mlc-llm#3494",),
        variants={"": without_bias(lambda module: module not in QKV)},
    ),
)
