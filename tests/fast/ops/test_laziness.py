"""No operation of `fast/ops` looks at the numbers in its arrays: a step of a model is one graph."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from lockstep.fast import ops
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS, MinifloatTensor
from tests.draws import packed_matrix
from tests.ops_backends import to_mlx

PLACES = np.array([[0, 1, 2]])
TOKENS = np.array([[4, 0, 1]])
BLIND = ops.causal_mask(PLACES, PLACES + 1, window=2)
TURNS = np.array([1.0, 0.1])
PACKED = to_mlx(packed_matrix(0, 5, 32, bits=4, group=32)[0])
OPTIONS = {"scale": 0.5, "masked_row": "uniform"}

CALLS = {  # the shapes of the arrays, and the call
    "add": ([(1, 3, 4)] * 2, ops.add),
    "add_lora": (
        [(1, 3, 5), (1, 3, 4), (2, 4), (5, 2)],
        lambda *arrays: ops.add_lora(*arrays, scale=0.5),
    ),
    "add_lora_rows": (
        [(1, 3, 4), (2, 4), (5, 2)],
        lambda y, a, b: ops.add_lora_rows(y, TOKENS, a, b, scale=0.5),
    ),
    "attention": ([(1, 2, 3, 4)] * 3, lambda q, k, v: ops.attention(q, k, v, BLIND, **OPTIONS)),
    "attention_context": (
        [(1, 2, 3, 3), (1, 2, 3, 4)],
        lambda probs, values: ops.attention_context(probs, values, BLIND),
    ),
    "attention_scores": ([(1, 2, 3, 4)] * 2, lambda q, k: ops.attention_scores(q, k, scale=0.5)),
    "column_block": ([(1, 3, 4)], lambda x: ops.column_block(x, block=1, blocks=2)),
    "concatenate": ([(1, 2, 3, 4)] * 2, ops.concatenate),
    "dora_rescale": (
        [(1, 3, 5), (5, 4), (5,), (2, 4), (5, 2), (5,)],
        lambda *arrays: ops.dora_rescale(*arrays, scale=0.5),
    ),
    "dora_rescale, packed": (
        [(1, 3, 5), (2, 32), (5, 2), (5,)],
        lambda y, *arrays: ops.dora_rescale(y, PACKED, None, *arrays, scale=0.5),
    ),
    "embedding": ([(5, 4)], lambda table: ops.embedding(TOKENS, table, dtype=mx.float16)),
    "experts": (
        [(1, 3, 4), (1, 3, 5), (5, 2, 4), (5, 2, 4), (5, 4, 2)],
        lambda *arrays: ops.experts(*arrays, per_token=2),
    ),
    "experts, many": (
        [(1, 40, 4), (1, 40, 5), (5, 2, 4), (5, 2, 4), (5, 4, 2)],
        lambda *arrays: ops.experts(*arrays, per_token=2),
    ),
    "gain": ([(1, 3, 4), (4,)], ops.gain),
    "geglu": ([(1, 3, 4)] * 2, ops.geglu),
    "geglu_experts": (
        [(1, 3, 4), (1, 3, 5), (5, 2, 4), (5, 2, 4), (5, 4, 2)],
        lambda *arrays: ops.geglu_experts(*arrays, per_token=2),
    ),
    "gelu_erf": ([(1, 3, 4)], ops.gelu_erf),
    "gelu_tanh": ([(1, 3, 4)], ops.gelu_tanh),
    "heads_first": ([(1, 3, 2, 4)], ops.heads_first),
    "layer_norm": ([(1, 3, 4), (4,), (4,)], lambda x, *two: ops.layer_norm(x, *two, eps=1e-6)),
    "linear": ([(1, 3, 4), (5, 4), (5,)], ops.linear),
    "linear, packed": ([(1, 3, 32)], lambda x: ops.linear(x, PACKED, None)),
    "merge_heads": ([(1, 2, 3, 4)], ops.merge_heads),
    "multiply": ([(1, 3, 4)] * 2, ops.multiply),
    "rms_norm": ([(1, 3, 4), (4,)], lambda x, gain: ops.rms_norm(x, gain, eps=1e-6)),
    "rope": ([(1, 2, 3, 4)], lambda x: ops.rope(x, PLACES, TURNS, factor=1.0)),
    "rope, any order": (
        [(1, 2, 3, 4)],
        lambda x: ops.rope(x, PLACES[:, ::-1], TURNS, factor=1.2),
    ),
    "rope, by rows": ([(1, 2, 3, 4)], lambda x: ops.rope(x, PLACES, TURNS[None], factor=1.0)),
    "scale": ([(1, 3, 4)], lambda x: ops.scale(x, by=0.5)),
    "silu": ([(1, 3, 4)], ops.silu),
    "softcap": ([(1, 3, 4)], lambda x: ops.softcap(x, cap=30.0)),
    "softmax": ([(1, 2, 3, 3)], lambda s: ops.softmax(s, BLIND, masked_row="uniform")),
    "split_heads": ([(1, 3, 4)], lambda x: ops.split_heads(x, heads=2)),
    "swiglu": ([(1, 3, 4)] * 2, ops.swiglu),
    "take_rows": ([(1, 3, 4)], lambda x: ops.take_rows(x, np.array([2]))),
    "top_k_routing": (
        [(1, 3, 5)],
        lambda logits: ops.top_k_routing(logits, per_token=2, normalize=True),
    ),
    "unit_norm": ([(1, 3, 4)], lambda x: ops.unit_norm(x, eps=1e-6)),
    "dequantize_affine": (
        [(5, 1)],
        lambda scale: ops.dequantize_affine(packed_with(scale), rows=slice(0, 2), dtype=mx.float32),
    ),
    "dequantize": ([(5, 34)], lambda octets: unpacked(ops.dequantize, octets, "Q8_0")),
    **{
        f"dequantize_blocks, {name}": (
            [(5, size)],
            lambda octets, name=name: unpacked(ops.dequantize_blocks, octets, name),
        )
        for name, (_, size) in BLOCKS.items()
    },
    **{
        f"dequantize_minifloat, {mode}": (
            [(5, bits), (5, 32 // group)],
            lambda *parts, mode=mode: minifloats(*parts, mode),
        )
        for mode, (bits, group) in MINIFLOATS.items()
    },
}
KINDS = ("dynamic", "linear", "llama3", "longrope", "proportional", "yarn")
ON_THE_HOST = {"causal_mask", "rope_frequencies", *(f"rope_frequencies_{kind}" for kind in KINDS)}


def packed_with(scales):
    return replace(PACKED, scales=scales)


def minifloats(packed, scales, mode):
    weight = MinifloatTensor(packed.astype(mx.uint32), scales.astype(mx.uint8), mode)
    return ops.dequantize_minifloat(weight, rows=slice(0, 3), dtype=mx.float16)


def unpacked(op, octets, name):
    weight = BlockTensor(octets.astype(mx.uint8), name)
    return op(weight, rows=slice(0, 2), dtype=mx.float32)


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_evaluated(name):
    """By law: `mx.compile` traces the operation, and refuses whoever asks for a number."""
    shapes, call = CALLS[name]
    traced = []

    def once(*arrays):
        traced.append(name)
        return call(*arrays)

    with mx.stream(mx.cpu):
        mx.compile(once)(*[mx.ones(shape) for shape in shapes])  # a graph: it is never computed
    assert traced


def test_looking_at_a_number_would_be_caught():
    """By hand: a planted look fails, so the test above can."""
    with pytest.raises(ValueError, match="eval"):
        mx.compile(lambda x: x * x.max().item())(mx.ones(3))


def test_every_operation_is_tried():
    """By law: the list above has all of them, but for those that stay on the host."""
    assert {name.split(",")[0] for name in CALLS} | ON_THE_HOST == set(ops.__all__)
