"""256 weights in 176 bytes: as Q4_K, with 32 bytes of top bits before the codes.

Bit g of a byte of top bits belongs to group g.
"""

from lockstep.fast.kernels.formats.six_bits import scale_and_offset
from lockstep.fast.kernels.lanes import WIDTH, field, joined
from lockstep.fast.kernels.memory import octets

GROUP, ZERO, REST = 32, 16, 1


def codes(of, matrix, row, group, index):
    (blocks,) = matrix
    start, part = row * blocks.shape[1] + group // 8 * of.size, group % 8
    octet = start + 48 + part // 2 * 32 + index * WIDTH
    low = field(octets(blocks, octet), part % 2 * 4, 15)
    return joined(low, field(octets(blocks, start + 16 + index * WIDTH), part, 1), 4)


def levels(of, matrix, row, group, index):
    (blocks,) = matrix
    return scale_and_offset(blocks, row * blocks.shape[1] + group // 8 * of.size, group % 8)
