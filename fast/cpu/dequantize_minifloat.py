from functools import cache

import numpy as np

from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor

BYTES = np.arange(256, dtype=np.uint32)


def dequantize_minifloat(weight: MinifloatTensor, *, rows: slice | Array, dtype: np.dtype) -> Array:
    """Unpack chosen rows of a matrix in one of MLX's modes mxfp4, mxfp8 and nvfp4.

    Differs from `reference.ops.dequantize_minifloat`: in nothing; a table turns each byte into the
    one or two numbers that it holds, and is made of the bits of float32.
    """
    octets = np.ascontiguousarray(weight.packed[rows], "<u4").view(np.uint8)
    scales = np.take(scale_table(weight.mode), weight.scales[rows])
    levels = np.take(level_table(weight.bits), octets, axis=0)
    out = levels.reshape(*scales.shape, weight.group_size)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out *= scales[..., None]
        return out.astype(dtype, copy=False).reshape(len(octets), weight.shape[1])


@cache
def level_table(bits: int) -> Array:
    """Return the numbers in each of the 256 bytes, (256, 8/bits) float32."""
    if bits == 8:
        return e4m3(BYTES)[:, None]
    nibbles = BYTES[:, None] >> np.array([0, 4], np.uint32) & 15
    return moved(nibbles >> 3, nibbles & 7, mantissa=1, bias=1)


@cache
def scale_table(mode: str) -> Array:
    """Return the number that each scale byte means, (256,) float32."""
    if mode == "nvfp4":
        return e4m3(BYTES)
    # A byte is the exponent of a float32, and 255 infinity; 0 is a power that is subnormal there.
    return np.where(BYTES == 0, 1 << 22, BYTES << 23).astype(np.uint32).view(np.float32)


def e4m3(codes: Array) -> Array:
    values = moved(codes >> 7, codes & 127, mantissa=3, bias=7)
    return np.where(codes & 127 == 127, np.float32(np.nan), values)


def moved(sign: Array, rest: Array, *, mantissa: int, bias: int) -> Array:
    """Move exponent and mantissa to their places in a float32, and make up for its larger bias.

    The product also gives the right numbers to codes that are subnormal: they are so before it.
    """
    bits = (sign << 31 | rest << (23 - mantissa)).astype(np.uint32)
    return bits.view(np.float32) * np.float32(2.0 ** (127 - bias))
