"""Packing as another engine does, against MLX and gguf-py: to the bit."""

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from lockstep.parity.faults.packing import affine, codes_of, minifloat, q4_0, q8_0
from lockstep.reference import ops
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def weight(dtype: str) -> np.ndarray:
    rows = np.random.default_rng(29).standard_normal((40, 256)) * 0.05
    rows[3, :128] = 0
    return rows.astype(np.float32).astype(DTYPES[dtype])


def in_mlx(rows: np.ndarray, dtype: str) -> mx.array:
    return mx.array(rows.astype(np.float32)).astype(getattr(mx, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_affine(dtype, group_size, bits):
    rows = weight(dtype)
    packed, *steps = mx.quantize(in_mlx(rows, dtype), group_size=group_size, bits=bits)
    found = affine(rows, bits=bits, group_size=group_size)
    np.testing.assert_array_equal(found.packed, np.array(packed))
    for ours, theirs in zip((found.scales, found.biases), steps, strict=True):
        np.testing.assert_array_equal(ours.astype(np.float32), np.array(theirs.astype(mx.float32)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8"])
def test_tiny_floats(dtype, mode):
    """MLX gives a group of zeros another scale, and small negative numbers a 0 without a sign.

    On a CPU it rounds ties of mxfp4 towards 0.
    """
    rows, (bits, group_size) = weight(dtype), MINIFLOATS[mode]
    packed, scales = mx.quantize(in_mlx(rows, dtype), mode=mode, bits=bits, group_size=group_size)
    found = minifloat(rows, mode=mode, to_even=mode == "mxfp8")
    filled = np.ones(found.scales.shape, bool)
    filled[3, : 128 // group_size] = False
    np.testing.assert_array_equal(found.scales[filled], np.array(scales)[filled])
    theirs = mx.dequantize(packed, scales, mode=mode, bits=bits, group_size=group_size)
    ours = ops.dequantize(found, rows=slice(None), dtype=np.dtype(np.float32))
    np.testing.assert_array_equal(ours, np.array(theirs.astype(mx.float32)))
    assert codes_of(found).max() < 2**bits


@pytest.mark.parametrize(("kind", "pack"), [("Q8_0", q8_0), ("Q4_0", q4_0)])
def test_blocks(kind, pack):
    rows = weight("float32")
    expected = quantize(rows, getattr(GGMLQuantizationType, kind))
    np.testing.assert_array_equal(pack(rows).blocks, expected)
