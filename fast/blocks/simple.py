"""Blocks of 32 weights with one float16 scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

Formats that are symmetric around zero get the offset that moves their unsigned codes there.
"""

from typing import Any

from lockstep.fast.blocks.groups import Groups, fields, grouped, half


def q4_0(blocks: Any, xp: Any) -> Groups:
    scales = half(blocks, 0, xp)
    return Groups(grouped(fields(blocks[:, 2:], 16, 4, xp), 32), scales, -8 * scales)


def q4_1(blocks: Any, xp: Any) -> Groups:
    codes = grouped(fields(blocks[:, 4:], 16, 4, xp), 32)
    return Groups(codes, half(blocks, 0, xp), half(blocks, 2, xp))


def q5_0(blocks: Any, xp: Any) -> Groups:
    scales = half(blocks, 0, xp)
    return Groups(grouped(five_bits(blocks[:, 2:], xp), 32), scales, -16 * scales)


def q5_1(blocks: Any, xp: Any) -> Groups:
    codes = grouped(five_bits(blocks[:, 4:], xp), 32)
    return Groups(codes, half(blocks, 0, xp), half(blocks, 2, xp))


def q8_0(blocks: Any, xp: Any) -> Groups:
    scales = half(blocks, 0, xp)
    return Groups(grouped(blocks[:, 2:] ^ 128, 32), scales, -128 * scales)


def five_bits(octets: Any, xp: Any) -> Any:
    """Join 4 bytes of top bits and 16 of low halves: code i has bit i of the first."""
    top = xp.stack([octets[:, :4] >> bit & 1 for bit in range(8)], axis=2)
    return fields(octets[:, 4:], 16, 4, xp) | top.reshape(octets.shape[0], 32) << 4
