"""What goes wrong with the precision that numbers are held in."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.half_attention import by_operations, handed_over, in_a_kernel
from lockstep.parity.faults.rewrites import afterwards, only, option, rewrite
from lockstep.parity.faults.routers import GATED, rounded_through
from lockstep.parity.faults.tensors import BIAS, MATRICES, MISREAD, Reading, dense, read_as
from lockstep.parity.graph import Call, Graph
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.ops.experts import weighted_experts
from lockstep.reference.precision import dtype_named

HALVES = ("bfloat16", "float16")
ATTENTION = ("attention_scores", "attention_context")
LOG2E = math.log2(math.e)


def reread(ops: Any, weight: Any) -> Any:
    """Take the bits of bfloat16 numbers for those of float16, or the other way round.

    Of a packed matrix these are its scales and offsets.
    """
    if isinstance(weight, QuantizedTensor):
        return replace(weight, scales=other(weight.scales), biases=other(weight.biases))
    return other(weight) if isinstance(weight, np.ndarray) else weight


def other(numbers: np.ndarray) -> np.ndarray:
    if numbers.dtype.name not in HALVES:
        return numbers
    return numbers.view(dtype_named(HALVES[1 - HALVES.index(numbers.dtype.name)]))


def in_half(call: Call, index: int, graph: Graph) -> bool:
    """Say whether an input is a tensor that is stored in half precision."""
    stored = graph.stored.get(call.tensor(index) or "")
    return stored is not None and (stored.dtype in ("BF16", "F16") or stored.mode == "affine")


def misread(call: Call, graph: Graph, indices: Iterable[int]) -> Call | None:
    new = call
    for index in indices:
        if in_half(call, index, graph):
            new = new.with_input(index, read_as(new.inputs[index], Reading(reread, MISREAD)))
    return None if new is call else new


def every_half(call: Call, graph: Graph) -> Call | None:
    """Read every tensor that a call takes, and that is stored in half precision, wrongly."""
    return misread(call, graph, range(len(call.inputs)))


def weights_alone(call: Call, graph: Graph) -> Call | None:
    """Read the matrix wrongly, and rightly what a projection has beside it: a bias, an adapter."""
    if call.op not in BIAS:
        return None
    biased = len(call.inputs) > BIAS[call.op] and in_half(call, BIAS[call.op], graph)
    takers = {graph.calls[number].op for number in graph.consumers[call.number]}
    if call.op == "linear" and not biased and not takers & {"add_lora", "dora_rescale"}:
        return None
    return misread(call, graph, MATRICES[call.op])


def folded(name: str) -> Rewrite:
    """Round the scale of attention times log2(e), as kernels have it that use exp2."""

    def change(scale: float) -> float:
        return float(np.asarray(scale * LOG2E).astype(dtype_named(name))) / LOG2E

    return option("attention_scores", "scale", change)


def cut_to_ten_bits(ops: Any, x: np.ndarray) -> np.ndarray:
    """Round to the ten bits of TF32, to nearest with ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    half = np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return ((bits + half) & np.uint32(0xFFFFE000)).view(np.float32).astype(x.dtype)


def ten_bits_away(ops: Any, x: np.ndarray) -> np.ndarray:
    """Round to the ten bits of TF32, to nearest with ties away from nought, as `cvt.rna` does."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32).astype(x.dtype)


def ten_bits_cut(ops: Any, x: np.ndarray) -> np.ndarray:
    """Cut the bits off beyond the tenth, as hardware does that is handed float32 as it is."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(x.dtype)


def low(change: Any, *, attention: bool) -> Rewrite:
    """Round what goes into every product with weights, and into those of attention or not."""

    def matrix(ops: Any, weight: Any) -> np.ndarray:
        return change(ops, dense(ops, weight))

    def experts(gated: Any) -> Any:
        def wrong(ops: Any, x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
            gate, up, down = stacks
            return weighted_experts(
                x, routing, gate, up, down, per_token=per_token, gated=gated,
                linear=lambda x, w, bias: ops.linear(change(ops, x), matrix(ops, w), bias),
            )  # fmt: skip

        return wrong

    def lowered(call: Call, graph: Graph) -> Call | None:
        if call.op == "linear":
            return call.with_changed(0, change).with_changed(1, matrix)
        if call.op in ("attention_scores", "attention_context"):
            return call.with_changed(0, change).with_changed(1, change) if attention else None
        gated = GATED.get(call.op)
        return None if gated is None else call.replaced(experts(gated))

    return lowered


FAST = {
    "TF32": cut_to_ten_bits,
    "TF32, ties away from nought": ten_bits_away,
    "TF32, cut off": ten_bits_cut,
    "bfloat16": rounded_through("bfloat16"),
    "float16": rounded_through("float16"),
}


def rounded_logits(name: str, tap: str) -> Rewrite:
    def change(call: Call, graph: Graph) -> Call | None:
        return call.followed(rounded_through(name)) if tap in call.taps else None

    return change


def capped(call: Call, graph: Graph) -> bool:
    """Whether something is done to what the head says."""
    return "logits" not in call.taps


def half_cache(name: str, readers: Collection[str] = ATTENTION) -> Rewrite:
    """Round what operations of attention read, as a cache in half precision does."""

    @rewrite(readers)
    def rewritten(call: Call, graph: Graph) -> Call | None:
        return call.with_changed(1, rounded_through(name))

    return rewritten


FAULTS = (
    Fault(
        id="bf16-read-as-fp16",
        wrong="the bits of bfloat16 taken for float16, or the other way round",
        right="the dtype that the file's header says",
        symptom="NaN, or values far too small or too large",
        where="the first tensor that is read",
        fix="take the dtype of each tensor from the header",
        evidence=("paiml/aprender#2189",),
        variants={"": every_half, "in the matrix alone": weights_alone},
    ),
    Fault(
        id="fp16-residual-overflow",
        wrong="x + y in float16",
        right="x + y in float32, or in bfloat16",
        symptom="infinities beyond 65504, then NaN, in float16 alone",
        where="residual",
        fix="keep the stream in float32 or bfloat16",
        evidence=("ml-explore/mlx-lm#102", "unslothai/unsloth-zoo#600"),
        coarse=True,
        variants={"": afterwards("add", rounded_through("float16"))},
    ),
    Fault(
        id="fp16-mlp-product-overflow",
        wrong="act(gate) * up in float16",
        right="the product in float32",
        symptom="NaN behind down_proj",
        where="mlp.down_proj",
        fix="multiply in float32, or clamp to what float16 holds",
        evidence=("unslothai/unsloth-zoo#600",),
        coarse=True,
        variants={"": afterwards("multiply", rounded_through("float16"))},
    ),
    Fault(
        id="sdpa-scale-folded-half",
        wrong="scores = round(scale * log2 e) q k^T / log2 e, rounded to half precision",
        right="scores = scale q k^T, the scale in float32",
        symptom="every score is off by one ratio near 1",
        where="self_attn.scores",
        fix="keep the scale of attention in float32, where the sum is",
        evidence=("ml-explore/mlx#3119",),
        variants={f"in {half}": folded(half) for half in HALVES},
    ),
    Fault(
        id="tf32-or-fast-matmul",
        wrong="products of numbers of 10 bits, or of 7",
        right="products of float32",
        symptom="noise of 1e-3 everywhere",
        where="self_attn.q_proj",
        fix="turn fast products off before comparing: TF32, or the default precision on a TPU",
        evidence=("ml-explore/mlx-swift-lm#485",),
        coarse=True,
        variants={
            f"{name}{', attention not' if not attention else ''}": low(change, attention=attention)
            for name, change in FAST.items()
            for attention in (True, False)
        },
        convention=True,
    ),
    Fault(
        id="keys-and-values-in-half",
        wrong="keys and values, or either, cached in half precision, and all else in float32",
        right="keys and values in the dtype that is computed in",
        symptom="noise of 1e-4 from attention alone",
        where="self_attn.context",
        fix="none is needed: it halves the cache; keep float32 there to compare more closely",
        coarse=True,
        variants={
            **{f"in {half}": half_cache(half) for half in HALVES},
            **{f"keys alone, in {half}": half_cache(half, ATTENTION[:1]) for half in HALVES},
            **{f"values alone, in {half}": half_cache(half, ATTENTION[1:]) for half in HALVES},
        },
        convention=True,
    ),
    Fault(
        id="attention-in-half",
        wrong="attention in half precision, and all else in float32",
        right="attention in the dtype that is computed in",
        symptom="noise of 1e-3 (float16) or 1e-2 (bfloat16) from attention alone",
        where="self_attn.o_proj",
        fix="none is needed: fused kernels know half precision alone; to compare more closely, use"
        " attention in float32",
        coarse=True,
        variants={
            f"in {half}{how}": wrong(half)
            for half in HALVES
            for how, wrong in (
                ("", handed_over),
                (", powers too", in_a_kernel),
                (", each operation", by_operations),
            )
        },
        convention=True,
    ),
    Fault(
        id="logits-half-precision",
        wrong="logits rounded to half precision",
        right="logits in float32",
        symptom="ties among tokens, biased sampling",
        where="logits",
        fix="widen the logits to float32 before the softcap, softmax or argmax",
        evidence=("deepseek-ai/DeepSpec#31", "huggingface/candle#2928"),
        coarse=True,
        variants={
            **{f"in {half}": rounded_logits(half, "logits") for half in HALVES},
            **{
                f"in {half}, before the softcap": only(capped, rounded_logits(half, "lm_head"))
                for half in HALVES
            },
        },
    ),
)
