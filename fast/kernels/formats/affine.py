"""Codes with a scale and an offset a group, as MLX packs them: `scale * code + offset`.

The arrays are the bytes of the codes, the scales and the offsets. Where codes keep to their byte,
sixteen codes come from one place of sixteen bytes; so the columns of `parts` vectors interleave,
and the activations must be sorted alike.
"""

from functools import cache

from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.lanes import WIDTH, field
from lockstep.fast.kernels.memory import codes_at, floats, floats_before, octets, scalar
from lockstep.fast.kernels.octets import MANY, many_octets, octet_field

SPAN = 64  # columns that are multiplied in whole numbers at a time


@cache
def layout(bits: int, group: int) -> Constants:
    step, run = group * bits // 8, WIDTH * bits // 8  # bytes of a group, of sixteen codes
    straddling = 8 % bits != 0 or step % WIDTH != 0
    numbers = {"bits": bits, "mask": 2**bits - 1, "group": group, "step": step, "run": run}
    numbers |= {"zero": 2 ** (bits - 1), "rest": 1, "span": min(group, SPAN)}
    parts = 1 if straddling else 8 // bits
    if parts > 1:  # what is a byte already is as quick in floats
        numbers |= {"stretch": MANY * parts, "vectors": parts, "shared": parts, "near": 1}
        numbers["aside"] = group
    return Constants(format="affine", **numbers, parts=parts, straddling=int(straddling))


def codes(of, matrix, row, group, index):
    packed, scales, _ = matrix
    start = (row * scales.shape[1] + group) * of.step
    if of.straddling:
        return codes_at(of, packed, start + index * of.run)
    octet = index // of.parts * WIDTH
    return field(octets(packed, start + octet), index % of.parts * of.bits, of.mask)


def levels(of, matrix, row, group, index):
    _, scales, offsets = matrix
    place = row * scales.shape[1] + group
    return scalar(scales, place), scalar(offsets, place)


def many_codes(of, matrix, row, vector):
    packed, _, _ = matrix
    some = many_octets(packed, row * packed.shape[1] + vector // of.parts * MANY)
    return octet_field(some, vector % of.parts * of.bits, of.mask)


def group_levels(of, matrix, row, group):
    _, scales, offsets = matrix
    place = row * scales.shape[1] + group
    if group + WIDTH <= scales.shape[1]:  # else AVX2 reads halves of floats one by one
        return floats(scales, place), floats(offsets, place)
    end = place + (scales.shape[1] - group)  # so that it is seen to be alike for all rows
    return floats_before(scales, place, end), floats_before(offsets, place, end)
