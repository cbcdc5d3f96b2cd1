"""Every operation has a rule that tells the shape which it gives. By law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parity.replaying.shape_ops import SHAPE_OPS, blank
from lockstep.reference import ops
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from tests.sampled import sampled

sizes = st.integers(1, 4)
F32 = np.dtype(np.float32)


def packed(rows: int, columns: int) -> QuantizedTensor:
    scales = np.ones((rows, columns // 32), np.float32)
    codes = np.zeros((rows, columns // 8), np.uint32)
    return QuantizedTensor(codes, scales, scales, 4, 32, "affine")


def blocks(rows: int, columns: int) -> BlockTensor:
    return BlockTensor(np.zeros((rows, columns // 32 * 34), np.uint8), "Q8_0")


def minifloats(rows: int, columns: int) -> MinifloatTensor:
    codes = np.zeros((rows, columns // 8), np.uint32)
    return MinifloatTensor(codes, np.zeros((rows, columns // 32), np.uint8), "mxfp4")


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}


# For each operation: its inputs and its options, of drawn sizes.
def calls(b, n, s, h, g, d):
    heads, d = h * g, 2 * d
    s += n
    x, wide = np.ones((b, n, d), F32), np.ones((b, heads, n, d), F32)
    keys = np.ones((b, g, s, d), F32)
    places, held = np.arange(n)[None].repeat(b, 0), np.arange(s)[None].repeat(b, 0)
    mask = ops.causal_mask(places + s - n, held, window=None)
    scores = np.ones((b, heads, n, s), F32)
    up, down = np.ones((h, g, d), F32), np.ones((h, d, g), F32)
    thin = np.ones((h, d), F32), np.ones((d, h), F32)
    routing = ops.top_k_routing(np.ones((b, n, h), F32), per_token=1, normalize=True)
    scaled = {"factor": 2.0, "original_max_position_embeddings": 8}
    turns, each = {"theta": 1e4, "dims": d}, (1.0,) * (d // 2)
    stretched = {"short_factor": each, "long_factor": each, "original_max_position_embeddings": 8}
    return {
        "add": ((x, x), {}),
        "add_lora": ((x, x, *thin), {"scale": 1.0}),
        "add_lora_rows": ((x, places, thin[0], np.ones((s, h), F32)), {"scale": 1.0}),
        "attention": ((wide, keys, keys, mask), {"scale": 1.0, "masked_row": "uniform"}),
        "attention_context": ((scores, keys, mask), {}),
        "attention_scores": ((wide, keys), {"scale": 1.0}),
        "causal_mask": ((places, held), {"window": 2}),
        "concatenate": ((keys, keys[:, :, :n]), {}),
        "column_block": ((np.ones((b, n, h * d), F32),), {"block": 0, "blocks": h}),
        "dequantize": ((packed(h, 32 * d),), {"rows": slice(None), "dtype": F32}),
        "dequantize_affine": ((packed(h, 32 * d),), {"rows": slice(None), "dtype": F32}),
        "dequantize_blocks": ((blocks(h, 32 * d),), {"rows": slice(None), "dtype": F32}),
        "dequantize_minifloat": ((minifloats(h, 32 * d),), {"rows": slice(None), "dtype": F32}),
        "embedding": ((np.zeros((b, n), int), np.ones((s, d), F32)), {"dtype": F32}),
        "dora_rescale": ((x, np.eye(d, dtype=F32), None, *thin, x[0, 0]), {"scale": 1.0}),
        "experts": ((x, routing, up, up, down), {"per_token": 1}),
        "gain": ((x, np.ones(d, F32)), {}),
        "geglu": ((x, x), {}),
        "geglu_experts": ((x, routing, up, up, down), {"per_token": 1}),
        "gelu_erf": ((x,), {}),
        "gelu_tanh": ((x,), {}),
        "heads_first": ((np.ones((b, n, h, d), F32),), {}),
        "layer_norm": ((x, np.ones(d, F32), np.ones(d, F32)), {"eps": 1e-6}),
        "linear": ((x, np.ones((s, d), F32), None), {}),
        "merge_heads": ((wide,), {}),
        "multiply": ((x, x), {}),
        "rms_norm": ((x, np.ones(d, F32)), {"eps": 1e-6}),
        "rope": ((wide, places, np.ones(d // 2)), {"factor": 1.0}),
        "rope_frequencies": ((), turns),
        "rope_frequencies_dynamic": ((np.ones(b, int),), turns | scaled | {"dims": 2 * d}),
        "rope_frequencies_linear": ((), turns | {"factor": 2.0}),
        "rope_frequencies_llama3": ((), turns | scaled | LLAMA3),
        "rope_frequencies_longrope": ((np.ones(b, int),), turns | stretched),
        "rope_frequencies_proportional": ((), turns | {"partial_rotary_factor": 0.5}),
        "rope_frequencies_yarn": ((), turns | scaled | YARN),
        "scale": ((x,), {"by": 2.0}),
        "silu": ((x,), {}),
        "softcap": ((x,), {"cap": 30.0}),
        "softmax": ((scores, mask), {"masked_row": "uniform"}),
        "split_heads": ((np.ones((b, n, h * d), F32),), {"heads": h}),
        "swiglu": ((x, x), {}),
        "take_rows": ((x, np.zeros(b, int)), {}),
        "top_k_routing": ((x,), {"per_token": 1, "normalize": True}),
        "unit_norm": ((x,), {"eps": 1e-6}),
    }


def test_there_is_a_rule_and_a_call_for_every_operation():
    assert set(vars(SHAPE_OPS)) == set(ops.__all__) == set(calls(1, 1, 1, 1, 1, 1))


@sampled(9, "rope_frequencies_longrope")
@pytest.mark.parametrize("name", sorted(ops.__all__))
@given(st.tuples(*[sizes] * 6))
def test_the_rule_gives_the_shape_of_the_operation(name, drawn):
    inputs, options = calls(*drawn)[name]
    right = getattr(ops, name)(*inputs, **options)
    found = getattr(SHAPE_OPS, name)(*inputs, **options)
    assert found.shape == right.shape


def test_a_blank_takes_no_memory():
    huge = blank(10**6, 10**6, 10**4)
    assert huge.strides == (0, 0, 0)
    assert huge.base.nbytes == 4
