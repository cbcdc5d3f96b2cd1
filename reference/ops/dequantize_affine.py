import numpy as np

from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.precision import rounded
from lockstep.reference.shapes import Array


def dequantize_affine(weight: QuantizedTensor, *, rows: slice | Array, dtype: np.dtype) -> Array:
    """Unpack chosen rows of an MLX affine-quantised matrix.

        out[n, k] = scales[n, k // group_size] * code[n, k] + biases[n, k // group_size]

    The codes of a row are one little-endian stream of bits, lowest bit first, seen as uint32
    words; at 3, 5 and 6 bits a code may straddle two words.
    Rounding: scales and biases are widened to `dtype` first; then product and sum round once each
    in `dtype`. (`mx.dequantize` with bfloat16 scales rounds both to bfloat16 instead.)
    Edges: a non-finite scale or bias spoils its group alone; subnormal scales are kept; scales
    may be negative. Widths 1 to 8 bits.
    Varies by model: `bits`, `group_size`, and the scales' dtype, tensor by tensor.
    Source: the format of mlx.core.quantize; Frantar et al. 2022, arXiv:2210.17323, section 3.
    """
    codes = unpack_codes(weight.packed[rows], weight.bits).astype(dtype)  # (N, K)
    scales = rounded(weight.scales[rows], dtype)  # (N, K/group)
    biases = rounded(weight.biases[rows], dtype)
    groups = codes.reshape(*scales.shape, weight.group_size)  # (N, K/group, group)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return (groups * scales[..., None] + biases[..., None]).reshape(codes.shape)


def unpack_codes(packed: Array, bits: int) -> Array:
    """Return the unsigned codes (N, K) of rows of uint32 words (N, K*bits/32)."""
    shape = len(packed), packed.shape[1] * 32 // bits
    octets = np.ascontiguousarray(packed, "<u4").view(np.uint8)
    if 8 % bits == 0:  # codes keep to their byte: shift and mask
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return (octets[..., None] >> shifts & (2**bits - 1)).reshape(shape)
    digits = np.unpackbits(octets, -1, bitorder="little").reshape(*shape, bits)  # (N, K, bits)
    return digits @ (1 << np.arange(bits, dtype=np.uint8))
