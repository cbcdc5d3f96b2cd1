"""32 weights in 20 bytes: scale and offset in float16, then codes; low halves of bytes first."""

from lockstep.fast.kernels.formats.nibbles import nibbles
from lockstep.fast.kernels.lanes import float16_at, fma, scalar, splat

GROUP = 32


def share(of, blocks, start, x, at, sums, group, lanes, constant):
    some = nibbles(blocks, start + 4, x, at)
    lanes = fma(splat(float16_at(blocks, start)), some, lanes)
    return lanes, constant + float16_at(blocks, start + 2) * scalar(sums, group)
