"""What goes wrong inside of attention: scale, heads, values, probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.alibi import even_slopes, is_uneven, lowered_by, slopes
from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.pooled import of_first_of_its_kind
from lockstep.parity.faults.rewrites import either, instead, only, rewrite
from lockstep.parity.faults.softmaxes import (
    IN_FEW_BITS,
    over_all,
    over_heads,
    over_queries,
    over_queries_masked_after,
    with_one_more,
)
from lockstep.parity.faults.tensors import reading
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
from lockstep.parity.graph import Call, Graph

AVERAGE = "attention_context"


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


def heads_read(which: Callable[[int, int, int], int]) -> Rewrite:
    """Read key head `which(query head, key heads, query heads that share one)`."""

    @rewrite(("attention_scores", "attention_context"))
    def rewritten(call: Call, graph: Graph) -> Call | None:
        queries, groups = (graph.input_shape(call, index)[1] for index in (0, 1))
        share = queries // groups
        read = [which(head, groups, share) for head in range(queries)]
        if read == [head // share for head in range(queries)]:
            return None
        return call.with_changed(1, lambda ops, heads: np.take(heads, read, axis=1))

    return rewritten


@rewrite("attention_scores")
def compared_with_values(call: Call, graph: Graph) -> Call | None:
    """Compare queries with values, where those have a head's width too."""
    found = (one for one in graph.calls if (one.op, one.layer) == (AVERAGE, call.layer))
    average = next(found, None)
    if average is None or graph.input_shape(average, 1) != graph.input_shape(call, 1):
        return None
    return call.with_changed(1, lambda ops, keys, values: values, average.inputs[1])


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
        id="alibi-added",
        wrong="scores - m (i - j), m another number in each head",
        right="scores: positions are in the turn of queries and keys",
        symptom="attention looks at what is near; the first token is exact",
        where="self_attn.scores",
        fix="leave ALiBi out: this model has rope, or learned positions",
        variants={
            "": lowered_by(slopes),
            "slopes of 2^(-8 h / H), H no power of two": only(is_uneven, lowered_by(even_slopes)),
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
        id="k-taken-from-v",
        wrong="scores = s q v^T",
        right="scores = s q k^T",
        symptom="garbage with the right shapes",
        where="self_attn.scores, or self_attn.o_proj",
        fix="give keys and values a buffer each: a second name for one array holds what came last",
        variants={"": compared_with_values},
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
            "normed keys, normed again": values_of_normed_keys(turned=False),
            "turned keys, normed again": values_of_normed_keys(turned=True),
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
        wrong="a layer that takes keys of another one projects them from its own stream, turns them"
        " once more, or takes those of the first layer of its kind",
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
            "keys and values of the first layer of its kind": of_first_of_its_kind,
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
        id="gqa-head-mapping",
        wrong="query head h looks at key head min(h, G - 1), at the first or last, or at another's",
        right="query head h looks at key head h // (H / G)",
        symptom="garbage with the right shapes",
        where="self_attn.o_proj",
        fix="divide the number of the query head by H / G",
        variants={
            "min(h, G - 1)": heads_read(lambda head, groups, share: min(head, groups - 1)),
            "0": heads_read(lambda head, groups, share: 0),
            "G - 1": heads_read(lambda head, groups, share: groups - 1),
            "the next one": heads_read(lambda head, groups, share: (head // share + 1) % groups),
            "from the last on": heads_read(lambda head, groups, share: groups - 1 - head // share),
        },
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
            f"{place}in {name}": change(name)
            for place, change in IN_FEW_BITS.items()
            for name in ("bfloat16", "float16")
        },
    ),
    Fault(
        id="softmax-plus-one",
        wrong="exp(s) / (1 + sum(exp(s)))",
        right="exp(s) / sum(exp(s))",
        symptom="the shares of a query sum to less than 1; the first token is off most",
        where="self_attn.o_proj",
        fix="leave the sink out: this model has none",
        variants={"": instead("softmax", with_one_more)},
    ),
    Fault(
        id="softmax-wrong-axis",
        wrong="probabilities sum to 1 over queries, over heads, or over all there are",
        right="probabilities of a query sum to 1 over keys",
        symptom="garbage",
        where="self_attn.o_proj",
        fix="softmax over the last axis of (B, H, L, S)",
        acausal=True,
        variants={
            "over queries": instead("softmax", over_queries),
            "over queries, masked after": instead("softmax", over_queries_masked_after),
            "over heads": instead("softmax", over_heads),
            "over all of a head": over_all(heads=False),
            "over all of all heads": over_all(heads=True),
        },
    ),
)
