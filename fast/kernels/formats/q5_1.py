"""32 weights in 24 bytes: scale and offset in float16, 32 top bits, then low bits."""

from lockstep.fast.kernels.formats.nibbles import five_bits
from lockstep.fast.kernels.lanes import float16_at, fma, scalar, splat

GROUP = 32


def share(of, blocks, start, x, at, sums, group, lanes, constant):
    some = five_bits(blocks, start + 4, start + 8, x, at)
    lanes = fma(splat(float16_at(blocks, start)), some, lanes)
    return lanes, constant + float16_at(blocks, start + 2) * scalar(sums, group)
