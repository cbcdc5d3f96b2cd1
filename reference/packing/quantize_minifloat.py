import numpy as np

from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS, MinifloatTensor
from lockstep.reference.ops.dequantize_minifloat import ELEMENTS, SCALES
from lockstep.reference.packing.quantize_affine import pack_codes
from lockstep.reference.shapes import Array

SPOILT = {"mxfp4": 255, "mxfp8": 255, "nvfp4": 0x7F}  # the scale bytes that are no number


def quantize_minifloat(x: Array, *, mode: str) -> MinifloatTensor:
    """Pack numbers (..., K) in one of MLX's modes mxfp4, mxfp8 and nvfp4.

        peak = max |x| of a group / the largest number that a code can be (6, or 448)
        scale = the power of two that is peak or next above; in nvfp4 the E4M3 nearest to peak
        code = the tiny float nearest to x / scale

    Rounding: in float32. A number halfway between two codes goes to that of smaller magnitude in
    E2M1, to the even one in E4M3. A code of E2M1 that is 0 has no sign.
    Edges: a group of zeros has scale 1, in nvfp4 0. A value that is not finite spoils its group.
    Numbers too large for the largest scale of nvfp4, beyond 2688, take the largest code.
    MLX differs for what no weight is: below 1e-37 its scale byte wraps round to an enormous one,
    where here it is the smallest, and beyond 2.5e10 it finds any code of nvfp4.
    Varies by model: the mode, tensor by tensor, among affine ones.
    Source: mlx.core.quantize; OCP Microscaling Formats 1.0, section 6.3, which rounds the scale
    down instead, so that the largest numbers of a group may be cut.
    """
    _, group = MINIFLOATS[mode]
    groups = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // group, group)
    levels = ELEMENTS[mode].astype(np.float32)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        peaks = np.abs(groups).max(axis=-1) / np.nanmax(levels)
        scales = nearest_scale(peaks) if mode == "nvfp4" else power_above(peaks)
        scales = np.where(np.isfinite(peaks), scales, SPOILT[mode]).astype(np.uint8)
        ratios = groups / SCALES[mode].astype(np.float32)[scales][..., None]
        ratios = np.where(np.isfinite(ratios), ratios, 0)
    codes = nearest_even(ratios) if mode == "mxfp8" else nearest_below(ratios)
    return MinifloatTensor(pack_codes(codes.reshape(x.shape), MINIFLOATS[mode][0]), scales, mode)


def power_above(peaks: Array) -> Array:
    """Return the bytes of the powers of two that are the peaks or next above; 127 for 0."""
    part, power = np.frexp(peaks)  # peaks = part * 2**power, with part from 0.5 to 1
    return np.where(peaks > 0, (127 + power - (part == 0.5)).clip(0, 254), 127)


def nearest_scale(peaks: Array) -> Array:
    """Return the bytes of E4M3 nearest to peaks, which are positive; at most 448."""
    return nearest_even(np.minimum(peaks, 448))


def nearest_even(ratios: Array) -> Array:
    """Return the codes of E4M3 nearest to numbers, of two as near the even one."""
    levels = ELEMENTS["mxfp8"][:127]
    above = np.searchsorted(levels, np.abs(ratios)).clip(1, 126)
    middle = (levels[above - 1] + levels[above]) / 2
    size = np.abs(ratios)
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    return (np.where(up, above, above - 1) | np.signbit(ratios) << 7).astype(np.uint8)


def nearest_below(ratios: Array) -> Array:
    """Return the codes of E2M1 nearest to numbers, of two as near the smaller one."""
    levels = ELEMENTS["mxfp4"][:8]
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, np.abs(ratios))
    return (codes | (np.signbit(ratios) & (codes > 0)) << 3).astype(np.uint8)
