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
    """Write the codes of rows of uint32 words into `out` (N, K), in its dtype."""
    octets = np.ascontiguousarray(packed, "<u4").view(np.uint8)
    if 8 % bits == 0:
        out[...] = halved(octets, bits)
        return
    for place in range(8):  # after `bits` bytes codes lie in the same bits again
        first, shift = divmod(place * bits, 8)
        code = octets[:, first::bits]
        if shift + bits > 8:  # it goes on in the next byte
            code = code | octets[:, first + 1 :: bits].astype(np.uint16) << 8
        out[:, place::8] = code >> shift & (2**bits - 1)


def halved(octets: Array, bits: int) -> Array:
    """Give each code of a byte a byte of its own: cut all in halves, and these again."""
    width = 8
    while width > bits:
        width //= 2
        pairs = octets.astype("<u2")
        pairs |= pairs << 8 - width  # the upper half to where the upper byte begins
        pairs &= (2**width - 1) * 0x0101
        octets = pairs.view(np.uint8)
    return octets
