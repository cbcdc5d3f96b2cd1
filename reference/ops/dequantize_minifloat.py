import numpy as np

from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.ops.dequantize_affine import unpack_codes
from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Array


def dequantize_minifloat(weight: MinifloatTensor, *, rows: slice | Array, dtype: np.dtype) -> Array:
    """Unpack chosen rows of a matrix in one of MLX's modes mxfp4, mxfp8 and nvfp4.

        out[n, k] = SCALES[mode][scales[n, k // group]] * ELEMENTS[mode][code[n, k]]

    Codes lie as in the affine mode: one little-endian stream of bits a row, lowest bit first.
    Rounding: the product is exact in float32 (float64 for float64) unless it is subnormal or
    overflows there; then once to `dtype`.
    Edges: the scale byte 255 of mxfp4 and mxfp8 is infinity, as in MLX; the standard calls it NaN.
    Scale byte 0 is 2**-127, which float32 has as a subnormal. E4M3 has NaN and no infinity.
    Varies by model: the mode, tensor by tensor, among affine ones.
    Source: OCP Microscaling Formats 1.0, sections 5 and 6; OCP 8-bit Floating Point 1.0, section 3.
    """
    work = accumulator(dtype)
    codes = unpack_codes(weight.packed[rows], weight.bits)  # (N, K)
    scales = SCALES[weight.mode].astype(work)[weight.scales[rows]]  # (N, K/group)
    levels = ELEMENTS[weight.mode].astype(work)[codes]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        groups = levels.reshape(*scales.shape, weight.group_size) * scales[..., None]
        return rounded(groups.reshape(codes.shape), dtype)


def e2m1() -> Array:
    """Return the 16 numbers of a sign, two bits of exponent (bias 1) and one of mantissa."""
    return np.array([small_float(code, mantissa=1, exponent=2, bias=1) for code in range(16)])


def e4m3() -> Array:
    """Return the 256 numbers of a sign, four bits of exponent (bias 7) and three of mantissa."""
    values = np.array([small_float(code, mantissa=3, exponent=4, bias=7) for code in range(256)])
    values[[0x7F, 0xFF]] = np.nan
    return values


def e8m0() -> Array:
    """Return the 256 powers of two of a byte that is all exponent (bias 127), the last infinite."""
    return np.array([*(2.0 ** (byte - 127) for byte in range(255)), np.inf])


def small_float(code: int, *, mantissa: int, exponent: int, bias: int) -> float:
    """Return sign * 2**(power - bias) * (1 + part), or with power 0 its subnormal."""
    part = code % 2**mantissa / 2**mantissa
    power = (code >> mantissa) % 2**exponent
    size = (1 + part) * 2.0 ** (power - bias) if power else part * 2.0 ** (1 - bias)
    return -size if code >> (mantissa + exponent) else size


ELEMENTS = {"mxfp4": e2m1(), "mxfp8": e4m3(), "nvfp4": e2m1()}
SCALES = {"mxfp4": e8m0(), "mxfp8": e8m0(), "nvfp4": e4m3()}
