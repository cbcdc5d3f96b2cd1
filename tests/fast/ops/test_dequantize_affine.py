"""Why scales are widened before MLX unpacks: what `mx.dequantize` does with them itself."""

import mlx.core as mx
import numpy as np

from lockstep.fast.ops.dequantize_affine import dequantize_affine
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from tests.draws import packed_matrix
from tests.ops_backends import DTYPES, to_mlx, to_numpy
from tests.tolerances import assert_close


def test_mlx_alone_would_round_to_bfloat16():
    """By witness: with bfloat16 scales `mx.dequantize` gives bfloat16, and so loses bits."""
    weight, exact = packed_matrix(0, 4, 64, bits=4, group=32, dtype=DTYPES["bfloat16"])
    held: QuantizedTensor = to_mlx(weight)
    with mx.stream(mx.cpu):
        parts = held.packed, held.scales, held.biases
        alone = mx.dequantize(*parts, group_size=32, bits=4)
        ours = to_numpy(dequantize_affine(held, rows=slice(None), dtype=mx.float32))
    assert alone.dtype == mx.bfloat16
    assert (to_numpy(alone).astype(np.float64) != exact).mean() > 0.5
    assert_close(ours, exact, kind="sum")
