import numpy as np

from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.precision import rounded
from lockstep.reference.shapes import Array

FEW = 64  # rows at a time: what is made of them stays in a core's cache


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
    packed = weight.packed[rows]
    scales = rounded(weight.scales[rows], dtype)[..., None]  # (N, K/group, 1)
    biases = rounded(weight.biases[rows], dtype)[..., None]
    out = np.empty((len(packed), weight.shape[1]), dtype)
    groups = out.reshape(*scales.shape[:-1], weight.group_size)  # (N, K/group, group)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, len(out), FEW):
            few = slice(start, start + FEW)
            write_codes(packed[few], weight.bits, out[few])
            groups[few] *= scales[few]
            groups[few] += biases[few]
    return out


def unpack_codes(packed: Array, bits: int) -> Array:
    """Return the unsigned codes (N, K) of rows of uint32 words (N, K*bits/32)."""
    out = np.empty((len(packed), packed.shape[1] * 32 // bits), np.uint8)
    write_codes(packed, bits, out)
    return out


def write_codes(packed: Array, bits: int, out: Array) -> None:
    """Write them into `out`, in its dtype. After `step` bytes codes lie in the same bits again."""
    octets = np.ascontiguousarray(packed, "<u4").view(np.uint8)
    period, step = (8 // bits, 1) if 8 % bits == 0 else (8, bits)  # codes, and their bytes
    for place in range(period):
        first, shift = divmod(place * bits, 8)
        code = octets[:, first::step]
        if shift + bits > 8:  # it goes on in the next byte
            code = code | octets[:, first + 1 :: step].astype(np.uint16) << 8
        out[:, place::period] = code >> shift & (2**bits - 1)
