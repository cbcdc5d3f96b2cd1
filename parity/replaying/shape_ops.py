"""The operations on shapes alone: what each would return, without computing it."""

from types import SimpleNamespace
from typing import Any

import numpy as np


def blank(*shape: int) -> np.ndarray:
    """Return an array of a shape that holds one zero, seen everywhere: it takes no memory."""
    return np.broadcast_to(np.zeros((), np.float32), shape)


def same(x: Any, *others: Any, **options: Any) -> np.ndarray:
    return blank(*x.shape)


def attention(queries: Any, keys: Any, values: Any, mask: Any, **options: Any) -> np.ndarray:
    return blank(*queries.shape[:-1], values.shape[-1])


def split_heads(x: Any, *, heads: int) -> np.ndarray:
    return blank(*x.shape[:-1], heads, x.shape[-1] // heads)


def heads_first(x: Any) -> np.ndarray:
    batch, length, heads, width = x.shape
    return blank(batch, heads, length, width)


def merge_heads(x: Any) -> np.ndarray:
    batch, heads, length, width = x.shape
    return blank(batch, length, heads * width)


def concatenate(past: Any, new: Any) -> np.ndarray:
    return blank(*new.shape[:2], past.shape[2] + new.shape[2], new.shape[3])


def pairs(*, theta: float, dims: int, **options: Any) -> np.ndarray:
    return blank(dims // 2)


def pairs_of_rows(lengths: Any, *, theta: float, dims: int, **options: Any) -> np.ndarray:
    return blank(len(lengths), dims // 2)


def column_block(x: Any, *, block: int, blocks: int) -> np.ndarray:
    return blank(*x.shape[:-1], x.shape[-1] // blocks)


SHAPE_OPS = SimpleNamespace(
    add=same,
    add_lora=same,
    add_lora_rows=same,
    attention=attention,
    attention_context=lambda probs, values, mask: blank(*probs.shape[:-1], values.shape[-1]),
    attention_scores=lambda q, keys, *, scale: blank(*q.shape[:-1], keys.shape[2]),
    causal_mask=lambda q, keys, *, window: blank(len(q), 1, q.shape[1], keys.shape[-1]),
    column_block=column_block,
    concatenate=concatenate,
    dequantize=lambda weight, *, rows, dtype: blank(*weight.shape),
    dequantize_affine=lambda weight, *, rows, dtype: blank(*weight.shape),
    dequantize_blocks=lambda weight, *, rows, dtype: blank(*weight.shape),
    dequantize_minifloat=lambda weight, *, rows, dtype: blank(*weight.shape),
    dora_rescale=same,
    embedding=lambda tokens, table, *, dtype: blank(*tokens.shape, table.shape[1]),
    experts=same,
    gain=same,
    geglu=same,
    geglu_experts=same,
    gelu_erf=same,
    gelu_tanh=same,
    heads_first=heads_first,
    layer_norm=same,
    linear=lambda x, weight, bias: blank(*x.shape[:-1], weight.shape[0]),
    merge_heads=merge_heads,
    multiply=same,
    rms_norm=same,
    rope=same,
    rope_frequencies=pairs,
    rope_frequencies_dynamic=pairs_of_rows,
    rope_frequencies_linear=pairs,
    rope_frequencies_llama3=pairs,
    rope_frequencies_longrope=pairs_of_rows,
    rope_frequencies_proportional=pairs,
    rope_frequencies_yarn=pairs,
    scale=same,
    silu=same,
    softcap=same,
    softmax=same,
    split_heads=split_heads,
    swiglu=same,
    take_rows=lambda x, index: blank(*index.shape, *[1] * (2 - index.ndim), x.shape[2]),
    top_k_routing=same,
    unit_norm=same,
)
