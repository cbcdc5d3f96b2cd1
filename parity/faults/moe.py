"""What goes wrong with a mixture of experts."""

import numpy as np

from lockstep.parity.faults.expert_inputs import (
    BEHIND_DENSE,
    DIVIDED,
    GATE,
    OF_ATTENTION,
    OF_DENSE,
    OWN_NORM,
    before_norm,
    dense_reading_theirs,
    experts_reading,
    gives,
    norm_of_experts_reading,
    normed_twice,
    reading,
    router_reading,
    unscaled,
    without_norm,
)
from lockstep.parity.faults.expert_order import DOWNS, ORDERS, stacked
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
    ROUTING,
    alike,
    as_they_are,
    backwards,
    by_id,
    first_alone,
    first_for_all,
    highest_id_alone,
    last_alone,
    lowest_id_alone,
    next_best,
    over_tokens,
    rounded_choice,
    rounded_through,
    routed,
    shared_anew,
    sorted_by_id,
    weighed_at_gate,
    weighed_before,
    without_last,
    worst,
)
from lockstep.parity.faults.streams import into_layer
from lockstep.parity.graph import Call, Graph

SCALE = r"router"


def another_is_left(call: Call, graph: Graph) -> bool:
    return call.op == ROUTING and call.options["per_token"] < graph.shapes[call.number][-1]


def several(call: Call, graph: Graph) -> bool:
    return call.op == ROUTING and call.options["per_token"] > 1


def more_than_two(call: Call, graph: Graph) -> bool:
    """Of two the best alone is all but the last, which is another bug."""
    return call.op == ROUTING and call.options["per_token"] > 2


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
        changed_input("unit_norm", 0, through, OWN_NORM),
        rewrite("linear", DIVIDED)(logits),
        rewrite("linear", GATE)(both_ends),
        rewrite(ROUTING)(both_ends),
    )


def normalizes(call: Call, graph: Graph) -> bool:
    return bool(call.options.get("normalize"))


def of_one_pass(call: Call, graph: Graph) -> bool:
    return not graph.steps


def fed_at_once(call: Call, graph: Graph) -> bool:
    return normalizes(call, graph) and of_one_pass(call, graph)


def sigmoid(logits, probs):
    return 1 / (1 + np.exp(-logits))


def scaled_then_normalized(ops, routing, weights):
    scaled = ops.gain(routing, weights)
    normalized = scaled / scaled.sum(axis=-1, keepdims=True)
    return np.where(routing == 0, routing, normalized)  # not chosen, even where another is NaN


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
        wrong="expert(w x), or down(act(w gate) * up)",
        right="w expert(x)",
        symptom="plausible but wrong",
        where="the experts' output",
        fix="multiply what an expert says by its weight, not what it is given; Llama 4 alone does",
        evidence=("vllm-project/llm-compressor#1907", "huggingface/transformers#40609"),
        variants={"": weighed_before, "the gate alone": weighed_at_gate},
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
            ", ".join(filter(None, (name, part))): stacked(order_of, *stacks)
            for part, stacks in (("", ()), ("the last matrices alone", (DOWNS,)))
            for name, order_of in ORDERS.items()
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
            "weights by rising ids, experts by falling weights": only(
                several, routed(share=sorted_by_id)
            ),
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
            "that of the lowest number": only(several, routed(share=lowest_id_alone)),
            "the last of the best": only(several, routed(share=last_alone)),
            "the best": only(more_than_two, routed(share=first_alone)),
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
        id="moe-softmax-wrong-axis",
        wrong="the probabilities of each expert sum to 1 over tokens",
        right="the probabilities of each token sum to 1 over experts",
        symptom="tokens that hardly any expert hears, the longer the prompt is",
        where="the experts' output",
        fix="take the softmax over the last axis of the router's logits",
        acausal=True,
        variants={"": only(of_one_pass, routed(score=over_tokens))},
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
        wrong="the router reads what another module gives, or what it should have given",
        right="the router reads what it does in this architecture: in Gemma 4 the stream itself",
        symptom="other experts for some tokens",
        where="the router's scores",
        fix="check what the router is given: the stream, or the normalised stream",
        variants={
            "normalised twice": normed_twice,
            "without a norm of its own": without_norm(normed_twice),
            "the stream without its norm": reading("linear", before_norm, GATE),
            "what the dense MLP's norm gives": router_reading(gives(OF_DENSE)),
            "what attention's norm gives": router_reading(gives(OF_ATTENTION)),
            "the stream before attention": router_reading(into_layer),
        },
    ),
    Fault(
        id="moe-experts-input-wrong",
        wrong="the experts, or the MLP beside them, read another stream than theirs",
        right="each reads its own norm of the stream behind attention",
        symptom="plausible but worse text, while the router is right",
        where="the experts' output, or the dense MLP's",
        fix="hand the experts what their own norm gives, and the MLP what its norm gives",
        variants={
            "the stream without its norm": experts_reading(before_norm),
            "what attention's norm gives": experts_reading(gives(OF_ATTENTION)),
            "their norm of the stream before attention": norm_of_experts_reading(into_layer),
            "their norm of what the dense MLP says": norm_of_experts_reading(
                gives("mlp.down_proj")
            ),
            "their norm of what the dense MLP says, normalised": norm_of_experts_reading(
                gives(BEHIND_DENSE)
            ),
            "the dense MLP reads what their norm gives": dense_reading_theirs,
        },
        whole=("the dense MLP reads what their norm gives",),
    ),
)
