"""What goes wrong with adapters: how much, which way round, where, and whether at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.adapter_layers import (
    COUNTED_OTHERWISE,
    FACTORS,
    exchanged_with,
    rank_of,
    without_length,
)
from lockstep.parity.faults.dora import (
    not_divided,
    of_an_unscaled_update,
    of_the_base,
    on_a_part,
)
from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.head_rows import halves_first, pairs_first
from lockstep.parity.faults.lora_in_half import added_in, factors_in
from lockstep.parity.faults.lora_patterns import as_most_have
from lockstep.parity.faults.lora_saved import by_the_base
from lockstep.parity.faults.merged_adapter import (
    adds_nothing,
    can_be_packed,
    has_lengths,
    merged,
    other_than_default,
    packed_again,
    packed_by_default,
    sum_in,
)
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph


def rescaled(wrong: Callable[[float, int], float]) -> Rewrite:
    """Multiply by another scale: `wrong(scale, rank)`."""

    @rewrite(FACTORS)
    def rewritten(call: Call, graph: Graph) -> Call | None:
        scale = call.options["scale"]
        new = wrong(scale, rank_of(call))
        return None if math.isclose(new, scale) else call.with_options(scale=new)

    return rewritten


def of_half_the_rank(*, first: bool) -> Rewrite:
    """Leave out half of the rows of A; what is odd goes to the first half."""

    def some(ops: Any, a: Any) -> Any:
        kept = (np.arange(len(a)) < (len(a) + 1) // 2) == first
        return np.where(kept[:, None], a, a.dtype.type(0))

    @rewrite(FACTORS)
    def rewritten(call: Call, graph: Graph) -> Call | None:
        return call.with_changed(FACTORS[call.op][0], some) if rank_of(call) > 1 else None

    return rewritten


def refactored(*which: int) -> Rewrite:
    """Read the numbers of A (0) or B (1) as if they lay the other way round."""

    @rewrite(FACTORS)
    def rewritten(call: Call, graph: Graph) -> Call:
        new = call
        for one in which:
            new = new.with_changed(FACTORS[call.op][one], the_other_way)
        return new

    return rewritten


def the_other_way(ops: Any, factor: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(factor).reshape(factor.shape[::-1]).T


def not_applied(call: Call, graph: Graph) -> Call | None:
    """Leave what the base gives; with DoRA, at the call that gives the module's result."""
    if call.op == "dora_rescale":
        base = graph.source(call, 0).inputs[0]
        return call.with_changed(0, lambda ops, y, base: base, base).replaced(without_length)
    if call.op not in FACTORS or has_lengths(call, graph) or adds_nothing(call):
        return None
    return call.with_options(scale=0.0)


def without_factors(call: Call, graph: Graph) -> Call | None:
    """Read a second factor of noughts, as it begins; DoRA still gives the rows their lengths."""
    resized = call.op == "dora_rescale" or (call.op in FACTORS and has_lengths(call, graph))
    return call.with_options(scale=0.0) if resized else None


def to_half_of_the_rows(*, first: bool) -> Rewrite:
    """Add to one half of what a projection gives: to one of two that are fused."""

    @rewrite("add_lora")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        rows = graph.shapes[call.number][-1]
        there = (np.arange(rows) < rows // 2) == first
        if rows % 2 or adds_nothing(call):
            return None
        return call.with_changed(
            FACTORS[call.op][1], lambda ops, b: np.where(there[:, None], b, b.dtype.type(0))
        )

    return rewritten


def rows_of_b(order: Callable[[np.ndarray, int], np.ndarray]) -> Rewrite:
    """Reorder the rows of B in queries and keys: `order(rows, heads)`."""

    @rewrite(FACTORS, r"self_attn\.[qk]_proj")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        config, rows = graph.config, np.arange(graph.shapes[call.number][-1])
        queries = call.place.endswith("q_proj")
        heads = config.num_attention_heads if queries else config.num_key_value_heads
        if len(rows) % (2 * heads):
            return None
        moved = order(rows, heads)
        return call.with_changed(FACTORS[call.op][1], lambda ops, b: b[moved])

    return rewritten


FAULTS = (
    Fault(
        id="lora-scale-divided-again",
        wrong="y + (scale / r) B A x",
        right="y + scale B A x; mlx-lm stores the whole factor",
        symptom="the base model's habits shine through: the adapter is r times too weak",
        where="the first adapted projection",
        fix="use mlx-lm's `scale` as it is; only PEFT's lora_alpha is divided by the rank",
        variants={"": rescaled(lambda scale, rank: scale / rank)},
    ),
    Fault(
        id="lora-scale-missing",
        wrong="y + B A x",
        right="y + s B A x, s = lora_alpha / r, or mlx-lm's scale",
        symptom="the adapter is too weak, or too strong",
        where="the first adapted projection",
        fix="multiply what the adapter adds by its scale",
        variants={"": rescaled(lambda scale, rank: 1.0)},
    ),
    Fault(
        id="lora-alpha-not-divided",
        wrong="y + alpha B A x",
        right="y + (alpha / r) B A x",
        symptom="the adapter is r times too strong; text breaks down",
        where="the first adapted projection",
        fix="divide lora_alpha by the rank (by its root with use_rslora)",
        evidence=("Blaizzy/mlx-vlm#841", "Blaizzy/mlx-vlm#846", "hao-ai-lab/FastVideo#870"),
        variants={"": rescaled(lambda scale, rank: scale * rank)},
    ),
    Fault(
        id="lora-rslora-ignored",
        wrong="alpha / r where alpha / sqrt(r) is right, or the other way",
        right="alpha / sqrt(r) with use_rslora, alpha / r without",
        symptom="the adapter is too weak, or too strong, by the root of its rank",
        where="the first adapted projection",
        fix="read use_rslora from adapter_config.json",
        evidence=(
            "NVIDIA/TensorRT-LLM#1668",
            "turboderp-org/exllamav2#619",
            "huggingface/peft#2733",
        ),
        variants={
            "divided by r": rescaled(lambda scale, rank: scale / math.sqrt(rank)),
            "divided by the root of r": rescaled(lambda scale, rank: scale * math.sqrt(rank)),
        },
    ),
    Fault(
        id="lora-patterns-ignored",
        wrong="one alpha, or one rank, in the scale of all adapters",
        right="s = alpha / r, of each module its own: alpha_pattern and rank_pattern",
        symptom="some modules are adapted too much or too little",
        where="the projections that a pattern names",
        fix="look each module up in alpha_pattern and rank_pattern of adapter_config.json",
        variants={"of alpha": as_most_have(alpha=True), "of the rank": as_most_have(alpha=False)},
    ),
    Fault(
        id="lora-rank-cut",
        wrong="y + scale B' A' x, A' and B' of half the rank",
        right="y + scale B A x",
        symptom="the adapter does some of what it should",
        where="the first adapted projection",
        fix="copy all rows of A and all columns of B: see what the buffers of a rank were made for",
        variants={
            "the first half alone": of_half_the_rank(first=True),
            "the second half alone": of_half_the_rank(first=False),
        },
    ),
    Fault(
        id="lora-not-applied",
        wrong="y",
        right="y + scale B A x",
        symptom="the same as the base model",
        where="the first adapted projection",
        fix="check that the adapter's names match modules; refuse one that changes nothing",
        evidence=("MakazhanAlpamys/Soup#392", "ollama/ollama#4825", "ml-explore/mlx-lm#1249"),
        variants={
            "": not_applied,
            "but for DoRA's lengths": without_factors,
            "but to the first half of the rows": to_half_of_the_rows(first=True),
            "but to the second half of the rows": to_half_of_the_rows(first=False),
        },
    ),
    Fault(
        id="lora-saved-modules-ignored",
        wrong="tables, heads and norms of the base",
        right="those that the adapter's file holds whole, of modules_to_save",
        symptom="a degraded adapter; tokens that were added to the vocabulary mean nothing",
        where="the first module that modules_to_save names",
        fix="load what the adapter's file holds of modules_to_save in the place of the base's",
        variants={"": by_the_base},
    ),
    Fault(
        id="lora-applied-twice",
        wrong="y + 2 s B A x",
        right="y + s B A x",
        symptom="the adapter is too strong",
        where="the first adapted projection",
        fix="merge the adapter, or add it as the model runs, but not both; merge it once",
        variants={"": rescaled(lambda scale, rank: 2 * scale)},
    ),
    Fault(
        id="lora-subtracted",
        wrong="y - s B A x",
        right="y + s B A x",
        symptom="the model does the opposite of what it was trained for",
        where="the first adapted projection",
        fix="add the update; only to take a merged adapter out it is subtracted",
        variants={"": rescaled(lambda scale, rank: -scale)},
    ),
    Fault(
        id="lora-other-module",
        wrong="the adapter of another module of the layer",
        right="each adapter on the module that it is named after",
        symptom="a degraded adapter",
        where="the adapted projections",
        fix="match adapters by the modules' names, and keep the order of fused parts",
        variants={
            "gate and up exchanged": exchanged_with("mlp.gate_proj", "mlp.up_proj"),
            "keys and values exchanged": exchanged_with("self_attn.k_proj", "self_attn.v_proj"),
        },
    ),
    Fault(
        id="lora-in-half",
        wrong="the factors in half precision, or all that they are multiplied to",
        right="y + s B A x in float32, where that is computed in",
        symptom="noise from adapted projections alone",
        where="the first adapted projection",
        fix="keep the factors in float32, and multiply in it",
        coarse=True,
        variants={
            f"{what} in {half}": wrong(half)
            for half in ("bfloat16", "float16")
            for what, wrong in (("factors", factors_in), ("all of it", added_in))
        },
    ),
    Fault(
        id="lora-factors-transposed",
        wrong="the numbers of A or B read in the order of the other convention",
        right="PEFT: A (r, inputs), B (outputs, r); mlx-lm has both transposed",
        symptom="a crash, or silently another function",
        where="the first adapted projection",
        fix="transpose when converting between PEFT and mlx-lm; a reshape is no transpose",
        evidence=("osaurus-ai/vmlx-swift#320",),
        variants={"both": refactored(0, 1), "A alone": refactored(0), "B alone": refactored(1)},
    ),
    Fault(
        id="lora-layer-offset",
        wrong="the adapter of layer i on another layer",
        right="each adapter on the layer that it was trained for",
        symptom="a degraded adapter",
        where="the first adapted layer",
        fix="num_layers of mlx-lm counts from the end: the last n layers are adapted",
        variants=COUNTED_OTHERWISE,
        throughout=COUNTED_OTHERWISE,
    ),
    Fault(
        id="dora-magnitude-missing",
        wrong="(W + s B A) x",
        right="m (W + s B A) / |W + s B A| x, row by row",
        symptom="outputs of a wrong size",
        where="the first adapted projection",
        fix="give each row the length in lora_magnitude_vector (mlx-lm: m)",
        variants={"": rewrite("dora_rescale")(lambda call, graph: call.replaced(without_length))},
    ),
    Fault(
        id="dora-gain-wrong",
        wrong="m / |W|, m / |B A + W| or m for a gain, or the gain on W x or on s B A x alone",
        right="m (W + s B A) / |W + s B A| x, row by row",
        symptom="a degraded adapter",
        where="the first adapted projection",
        fix="divide by the lengths of the adapted weight's rows; the gain is of the whole sum",
        variants={
            "over the base's lengths": of_the_base,
            "over lengths with an update that is not scaled": of_an_unscaled_update,
            "over nothing": not_divided,
            "on the base alone": on_a_part(base=True),
            "on the update alone": on_a_part(base=False),
        },
    ),
    Fault(
        id="lora-qk-not-permuted",
        wrong="rows of B in one order, rows of W in the other",
        right="rows of B ordered as those of q_proj and k_proj are",
        symptom="a degraded adapter",
        where="self_attn.q_proj",
        fix="reorder the rows of B as the converter reorders q and k for GGUF",
        variants={
            "left in halves": rows_of_b(halves_first),
            "left in pairs": rows_of_b(pairs_first),
        },
    ),
    Fault(
        id="lora-merge-rounding",
        wrong="half(half(W) + half(s B A)), or that packed again",
        right="W x + s B A x",
        symptom="a part of a small update is rounded away",
        where="the first adapted projection",
        fix="keep the update apart, or add it in float32 and keep more bits",
        coarse=True,
        variants={
            "in bfloat16": merged(sum_in("bfloat16"), lambda stored: True),
            "in float16": merged(sum_in("float16"), lambda stored: True),
            **{
                f"in {half}, of factors in {half}": merged(sum_in(half), lambda stored: True, half)
                for half in ("bfloat16", "float16")
            },
            "packed as the base is": merged(packed_again, can_be_packed),
        },
    ),
    Fault(
        id="lora-fuse-ignores-mode",
        wrong="the merged weight packed in 4 bits and groups of 64, whatever the base was",
        right="packed as the base was, or left dense",
        symptom="a noisy or broken merged model",
        where="the first adapted projection",
        fix="pass bits, group size and mode of each layer on when it is packed again",
        evidence=("ml-explore/mlx-lm#647",),
        variants={"": merged(packed_by_default, other_than_default)},
    ),
)
