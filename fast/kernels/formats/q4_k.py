"""256 weights in 144 bytes: scales and minima of eight groups in 16 bytes, then codes.

Each 32 bytes of codes hold two groups: the low halves of all bytes, then the high halves.
"""

from lockstep.fast.kernels.formats.six_bits import scale_and_offset
from lockstep.fast.kernels.lanes import WIDTH, field, fma, to_floats
from lockstep.fast.kernels.memory import octets

GROUP = 32


def weights(of, matrix, row, group, index):
    (blocks,) = matrix
    start, part = row * blocks.shape[1] + group // 8 * of.size, group % 8
    octet = start + 16 + part // 2 * 32 + index * WIDTH
    scale, offset = scale_and_offset(blocks, start, part)
    return fma(to_floats(field(octets(blocks, octet), part % 2 * 4, 15)), scale, offset)
