from functools import cache

import numpy as np

from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.quantized import QuantizedTensor


def dequantize_affine(weight: QuantizedTensor, *, rows: slice | Array, dtype: np.dtype) -> Array:
    """Unpack chosen rows of an MLX affine-quantised matrix.

    Differs from `reference.ops.dequantize_affine`: a table turns each byte into its codes where
    codes keep to their byte, else each code is cut out of the two bytes that it may touch.
    """
    octets = np.ascontiguousarray(weight.packed[rows], "<u4").view(np.uint8)
    codes = (
        aligned(octets, weight.bits) if 8 % weight.bits == 0 else straddling(octets, weight.bits)
    )
    scales, biases = weight.scales[rows], weight.biases[rows]
    out = codes.reshape(*scales.shape, weight.group_size).astype(dtype, copy=False)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out *= scales.astype(dtype, copy=False)[..., None]
        out += biases.astype(dtype, copy=False)[..., None]
    return out.reshape(len(octets), weight.shape[1])


@cache
def code_table(bits: int) -> Array:
    """Return the codes in each of the 256 bytes, (256, 8/bits) float32."""
    byte = np.arange(256)[:, None]
    return (byte >> np.arange(0, 8, bits) & (2**bits - 1)).astype(np.float32)


def aligned(octets: Array, bits: int) -> Array:
    return np.take(code_table(bits), octets, axis=0)


def straddling(octets: Array, bits: int) -> Array:
    """Cut 8 codes out of every `bits` bytes: code j begins at bit j * bits."""
    parts = octets.reshape(len(octets), octets.shape[1] // bits, bits).astype(np.uint16)
    parts = np.concatenate([parts, np.zeros_like(parts[..., :1])], axis=-1)
    first, shift = np.divmod(np.arange(8, dtype=np.uint16) * bits, 8)
    pairs = parts[..., first] | parts[..., first + 1] << 8
    return pairs >> shift & (2**bits - 1)
