"""What goes wrong with a mixture of experts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.rewrites import (
    afterwards,
    changed_input,
    either,
    instead,
    only,
    option,
    rewrite,
    skipped,
)
from lockstep.parity.faults.routers import (
    EXPERTS,
    ROUTING,
    alike,
    as_they_are,
    backwards,
    by_id,
    first_for_all,
    highest_id_alone,
    last_alone,
    next_best,
    rounded_choice,
    rounded_through,
    routed,
    shared_anew,
    weighed_before,
    without_last,
    worst,
)
from lockstep.parity.graph import Call, Graph
from lockstep.reference.checkpoint.stack import Stack

SCALE, DIVIDED = r"router", r"router\.proj"
NORMED = "pre_feedforward_layernorm_2"


def another_is_left(call: Call, graph: Graph) -> bool:
    return call.op == ROUTING and call.options["per_token"] < graph.shapes[call.number][-1]


def several(call: Call, graph: Graph) -> bool:
    return call.op == ROUTING and call.options["per_token"] > 1


def next_best_for(lost: int) -> Rewrite:
    def has_as_many(call: Call, graph: Graph) -> bool:
        return another_is_left(call, graph) and lost < call.options["per_token"]

    return only(has_as_many, routed(choose=next_best(lost)))


def half_router(name: str, *, projection: bool) -> Rewrite:
    """Round what the router reads, its logits and the weights that it gives.

    What the projection dumps is rounded too, or not yet.
    """
    through = rounded_through(name)

    def both_ends(call: Call, graph: Graph) -> Call:
        return call.with_changed(0, through).followed(through)

    def logits(call: Call, graph: Graph) -> Call | None:
        return call.followed(through) if projection else None

    return either(
        changed_input("unit_norm", 0, through, r"router\.norm"),
        rewrite("linear", DIVIDED)(logits),
        rewrite("linear", r"mlp\.gate")(both_ends),
        rewrite(ROUTING)(both_ends),
    )


def normalizes(call: Call, graph: Graph) -> bool:
    return bool(call.options.get("normalize"))


def fed_at_once(call: Call, graph: Graph) -> bool:
    return normalizes(call, graph) and not graph.steps


def sigmoid(logits, probs):
    return 1 / (1 + np.exp(-logits))


def stacked(order_of: Callable[[range], Sequence[int]]) -> Rewrite:
    """Stack the experts in another order: which one stands in each place."""

    @rewrite(EXPERTS)
    def rewritten(call: Call, graph: Graph) -> Call | None:
        experts = range(graph.input_shape(call, 1)[-1])
        order = order_of(experts)
        if [*order] == [*experts]:
            return None

        def reordered(ops: Any, stack: Any) -> Stack:
            return Stack(stack.shape, lambda expert: stack[order[expert]])

        for index in (2, 3, 4):
            call = call.with_changed(index, reordered)
        return call

    return rewritten


def moved_on(by: int) -> Callable[[range], Sequence[int]]:
    return lambda experts: [(one + by) % len(experts) for one in experts]


def scaled_then_normalized(ops, routing, weights):
    scaled = ops.gain(routing, weights)
    normalized = scaled / scaled.sum(axis=-1, keepdims=True)
    return np.where(routing == 0, routing, normalized)  # not chosen, even where another is NaN


def reading_of_experts(keep_norm: bool) -> Rewrite:
    """Let the router read what the norm of the experts gives."""

    @rewrite("unit_norm", r"router\.norm")
    def change(call: Call, graph: Graph) -> Call | None:
        normed = graph.value(f"model.layers.{call.layer}.{NORMED}")
        if normed is None:
            return None
        reading = call.with_input(0, normed)
        return reading if keep_norm else reading.replaced(lambda ops, x, *, eps: x)

    return change


@rewrite("linear", DIVIDED)
def unscaled(call: Call, graph: Graph) -> Call:
    """Let the router project what its norm gives, without either factor."""
    return call.with_input(0, graph.source(graph.source(call, 0), 0).inputs[0])


@rewrite("linear", r"mlp\.gate")
def reading_of_stream(call: Call, graph: Graph) -> Call:
    """Let the router read the stream before its norm."""
    return call.with_input(0, graph.source(call, 0).inputs[0])


FAULTS = (
    Fault(
        id="moe-renorm-missing",
        wrong="w = p",
        right="w = p / sum of the chosen p",
        symptom="the experts count too little",
        where="the experts' output",
        fix="divide the chosen weights by their sum (norm_topk_prob)",
        evidence=("pytorch/torchtitan#1448", "HabanaAI/vllm-fork#73"),
        variants={"": option(ROUTING, "normalize", lambda right: False)},
    ),
    Fault(
        id="moe-renorm-spurious",
        wrong="w = softmax over the chosen logits alone",
        right="w = p of a softmax over all experts, as norm_topk_prob is false",
        symptom="a coherent start, then drift",
        where="the experts' output",
        fix="divide by the sum of the chosen weights only if norm_topk_prob says so",
        evidence=("lablup/mlxcel#391", "QwenLM/Qwen3#687"),
        variants={"": option(ROUTING, "normalize", lambda right: True)},
    ),
    Fault(
        id="moe-raw-logits-as-weights",
        wrong="w = the chosen logits",
        right="w = the chosen probabilities",
        symptom="experts scaled at random, some by negative numbers",
        where="the experts' output",
        fix="gather the weights from the probabilities",
        evidence=("sgl-project/sglang#35160",),
        variants={
            "as they are": routed(weigh=as_they_are, divided=False),
            "divided by their sum": only(normalizes, routed(weigh=as_they_are)),
        },
    ),
    Fault(
        id="moe-sigmoid-vs-softmax",
        wrong="p = sigmoid(logits)",
        right="p = softmax(logits)",
        symptom="garbage",
        where="the experts' output",
        fix="use the score function of this architecture",
        evidence=("ml-explore/mlx-lm#1354", "ml-explore/mlx-swift-lm#332"),
        variants={"sigmoid for softmax": routed(weigh=sigmoid)},
    ),
    Fault(
        id="moe-topk-partition-kth",
        wrong="the first k after a partition around element k: k of the k + 1 best",
        right="the first k after a partition around element k - 1",
        symptom="now and then one of the k best experts is missing",
        where="the experts' output",
        fix="partition around k - 1, counted from 0",
        evidence=("ml-explore/mlx-examples#676",),
        variants={
            "the next best for the last": next_best_for(0),
            **{f"the next best for the last but {lost}": next_best_for(lost) for lost in (1, 2, 3)},
        },
    ),
    Fault(
        id="moe-weight-on-output-vs-input",
        wrong="expert(w x)",
        right="w expert(x)",
        symptom="plausible but wrong",
        where="the experts' output",
        fix="multiply what an expert says by its weight, not what it is given; Llama 4 alone does",
        evidence=("vllm-project/llm-compressor#1907", "huggingface/transformers#40609"),
        variants={"": weighed_before},
    ),
    Fault(
        id="moe-router-precision",
        wrong="logits, probabilities or weights of the router in half precision",
        right="all of them in float32",
        symptom="another expert where two are nearly alike, and nothing else",
        where="the experts' output",
        fix="compute the router in float32, and do not quantise it to few bits",
        evidence=("ml-explore/mlx-lm#286", "Blaizzy/mlx-vlm#1791"),
        coarse=True,
        variants={
            "logits in bfloat16": changed_input(ROUTING, 0, rounded_through("bfloat16")),
            "logits in float16": changed_input(ROUTING, 0, rounded_through("float16")),
            "choice among bfloat16": routed(choose=rounded_choice("bfloat16")),
            "weights in bfloat16": afterwards(ROUTING, rounded_through("bfloat16")),
            "all of it in bfloat16": half_router("bfloat16", projection=True),
            "all but its projection in bfloat16": half_router("bfloat16", projection=False),
        },
    ),
    Fault(
        id="moe-renorm-epsilon",
        wrong="w = p / (sum + eps)",
        right="w = p / sum",
        symptom="none",
        where="the experts' output",
        fix="divide by the sum itself, or by the sum and the epsilon of this architecture",
        evidence=("ml-explore/mlx-lm#521", "ml-explore/mlx-lm#1354"),
        variants={f"eps = {eps:g}": only(normalizes, routed(epsilon=eps)) for eps in (1e-6, 1e-5)},
    ),
    Fault(
        id="moe-renorm-wrong-axis",
        wrong="w = p / its sum over tokens, or over all there are",
        right="w = p / its sum over the chosen experts of the token",
        symptom="each expert counts less, the longer the prompt is",
        where="the experts' output",
        fix="sum over the last axis, that of the chosen experts, and keep it",
        acausal=True,
        variants={
            "over tokens": only(fed_at_once, routed(over=(0, 1))),
            "over all": only(fed_at_once, routed(over=(0, 1, 2))),
        },
    ),
    Fault(
        id="moe-expert-order",
        wrong="experts stacked as 0, 1, 10, 11, 2, ..., from the last on, or one place off",
        right="experts stacked as 0, 1, 2, ..., 10, 11",
        symptom="garbage, while the router is right",
        where="the experts' output",
        fix="sort the experts by number, not by name, and count them from 0",
        variants={
            "": stacked(lambda experts: sorted(experts, key=str)),
            "from the last to the first": stacked(lambda experts: experts[::-1]),
            "each the next one": stacked(moved_on(1)),
            "each the one before": stacked(moved_on(-1)),
        },
    ),
    Fault(
        id="moe-weights-misplaced",
        wrong="the chosen experts in one order, their weights in another",
        right="each chosen expert has its own weight",
        symptom="plausible but worse text, while the router is right",
        where="the experts' output",
        fix="gather weights by the ids that are used, in the same order",
        variants={
            "in reverse": only(several, routed(share=backwards)),
            "ids rising, weights falling": only(several, routed(share=by_id)),
            "the first one's for all": only(several, routed(share=first_for_all)),
        },
    ),
    Fault(
        id="moe-weights-missing",
        wrong="what the chosen experts say is added, or averaged",
        right="it is weighed by the router's weights",
        symptom="garbage, while the router is right",
        where="the experts' output",
        fix="multiply what each expert says by its weight",
        variants={
            "added": routed(share=alike(in_all=False)),
            "averaged": only(several, routed(share=alike(in_all=True))),
        },
    ),
    Fault(
        id="moe-last-choice-lost",
        wrong="k - 1 of the k chosen experts are run, the others' weights being as they were",
        right="all k are run",
        symptom="plausible but worse text, while the router is right",
        where="the experts' output",
        fix="let the loop over a token's experts go on to its last one",
        variants={"": only(several, routed(share=without_last))},
    ),
    Fault(
        id="moe-sum-missing",
        wrong="what one of the chosen experts says, times its weight",
        right="the sum of that over all k",
        symptom="plausible but worse text, while the router is right",
        where="the experts' output",
        fix="add to what the other experts of a token said, do not assign",
        variants={
            "that of the highest number": only(several, routed(share=highest_id_alone)),
            "the last of the best": only(several, routed(share=last_alone)),
        },
    ),
    Fault(
        id="moe-softmax-twice",
        wrong="w = softmax of the chosen probabilities",
        right="w = the chosen probabilities, divided by their sum if norm_topk_prob says so",
        symptom="experts count nearly alike",
        where="the experts' output",
        fix="take the softmax once: of the logits",
        variants={"": only(several, routed(share=shared_anew, divided=False))},
    ),
    Fault(
        id="moe-selects-lowest",
        wrong="the k least likely experts",
        right="the k most likely experts",
        symptom="garbage",
        where="the experts' output",
        fix="take the largest router scores: check the sign and the slice around argpartition",
        variants={"": routed(choose=worst)},
    ),
    Fault(
        id="moe-per-expert-scale-missing",
        wrong="w",
        right="w * per_expert_scale, w normalised",
        symptom="each expert counts too much or too little, by a factor of its own",
        where="the experts' output",
        fix="multiply each chosen weight by per_expert_scale of its expert, after normalising",
        variants={
            "": skipped("gain", r"router\.routing"),
            "before normalising": instead("gain", scaled_then_normalized, r"router\.routing"),
        },
    ),
    Fault(
        id="moe-router-input-scale-missing",
        wrong="logits = W norm(h), or with one factor too few",
        right="logits = W (norm(h) * scale / sqrt(hidden_size))",
        symptom="routing too sharp or too flat, other experts",
        where="router.proj",
        fix="multiply by the router's scale and by hidden_size^-0.5 before the projection",
        variants={
            "without the learned scale": skipped("gain", SCALE),
            "without hidden_size^-0.5": skipped("scale", DIVIDED),
            "without both": unscaled,
        },
    ),
    Fault(
        id="moe-router-input-wrong",
        wrong="the router reads what a norm of the experts gives, or what it should have given",
        right="the router reads what it does in this architecture: in Gemma 4 the stream itself",
        symptom="other experts for some tokens",
        where="the router's scores",
        fix="check what the router is given: the stream, or the normalised stream",
        variants={
            "normalised twice": reading_of_experts(keep_norm=True),
            "without a norm of its own": reading_of_experts(keep_norm=False),
            "the stream without its norm": reading_of_stream,
        },
    ),
)
