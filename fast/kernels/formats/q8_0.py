"""32 weights in 34 bytes: a float16 scale, then signed bytes."""

from lockstep.fast.kernels.lanes import WIDTH, multiplied, splat, to_floats
from lockstep.fast.kernels.memory import float16_at, signed_octets

GROUP = 32


def weights(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    codes = signed_octets(blocks, start + 2 + index * WIDTH)
    return multiplied(to_floats(codes), splat(float16_at(blocks, start)))
