"""Codes with a scale and an offset a group, as MLX packs them: `scale * code + offset`.

The arrays are the bytes of the codes, the scales and the offsets. Where codes keep to their byte,
sixteen codes come from one place of sixteen bytes; so the columns of `parts` vectors interleave,
and the activations must be sorted alike.
"""

from functools import cache

from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.lanes import WIDTH, field, fma, splat, to_floats
from lockstep.fast.kernels.memory import codes_at, octets, scalar


@cache
def layout(bits: int, group: int) -> Constants:
    step, run = group * bits // 8, WIDTH * bits // 8  # bytes of a group, of sixteen codes
    straddling = 8 % bits != 0 or step % WIDTH != 0
    numbers = {"bits": bits, "mask": 2**bits - 1, "group": group, "step": step, "run": run}
    parts = 1 if straddling else 8 // bits
    return Constants(format="affine", **numbers, parts=parts, straddling=int(straddling))


def weights(of, matrix, row, group, index):
    packed, scales, offsets = matrix
    place = row * scales.shape[1] + group
    start = place * of.step
    if of.straddling:
        codes = codes_at(of, packed, start + index * of.run)
    else:
        octet = index // of.parts * WIDTH
        codes = field(octets(packed, start + octet), index % of.parts * of.bits, of.mask)
    scale, offset = splat(scalar(scales, place)), splat(scalar(offsets, place))
    return fma(to_floats(codes), scale, offset)
