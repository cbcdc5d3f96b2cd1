"""Blocks of 256 weights whose groups' scales are packed too: Q2_K to Q6_K."""

from typing import Any

from lockstep.fast.blocks.groups import Groups, fields, grouped, half


def q2_k(blocks: Any, xp: Any) -> Groups:
    scales, minima = blocks[:, :16] & 15, blocks[:, :16] >> 4
    codes = grouped(fields(blocks[:, 16:80], 32, 2, xp), 16)
    return with_minima(codes, scales, minima, half(blocks, 80, xp), half(blocks, 82, xp), xp)


def q3_k(blocks: Any, xp: Any) -> Groups:
    codes = fields(blocks[:, 32:96], 32, 2, xp) | fields(blocks[:, :32], 32, 1, xp) << 2
    low, top = fields(blocks[:, 96:104], 8, 4, xp), fields(blocks[:, 104:108], 4, 2, xp)
    scales = half(blocks, 108, xp) * ((low | top << 4).astype(xp.float32) - 32)
    return Groups(grouped(codes, 16), scales, -4 * scales)


def q4_k(blocks: Any, xp: Any) -> Groups:
    codes = grouped(fields(blocks[:, 16:144], 32, 4, xp), 32)
    pairs = twelve_bytes(blocks[:, 4:16], xp)
    return with_minima(codes, *pairs, half(blocks, 0, xp), half(blocks, 2, xp), xp)


def q5_k(blocks: Any, xp: Any) -> Groups:
    codes = fields(blocks[:, 48:176], 32, 4, xp) | fields(blocks[:, 16:48], 32, 1, xp) << 4
    pairs = twelve_bytes(blocks[:, 4:16], xp)
    return with_minima(grouped(codes, 32), *pairs, half(blocks, 0, xp), half(blocks, 2, xp), xp)


def q6_k(blocks: Any, xp: Any) -> Groups:
    codes = fields(blocks[:, :128], 64, 4, xp) | fields(blocks[:, 128:192], 32, 2, xp) << 4
    signed = (blocks[:, 192:208] ^ 128).astype(xp.float32) - 128
    scales = half(blocks, 208, xp) * signed
    return Groups(grouped(codes, 16), scales, -32 * scales)


def with_minima(codes: Any, scales: Any, minima: Any, d: Any, dmin: Any, xp: Any) -> Groups:
    scales, minima = scales.astype(xp.float32), minima.astype(xp.float32)
    return Groups(codes, d * scales, -(dmin * minima))


def twelve_bytes(octets: Any, xp: Any) -> tuple[Any, Any]:
    """Return eight scales and eight minima: 6 bits each, the last four of both in two places."""
    head, tail = octets[:, :8], octets[:, 8:]
    low, rest = head & 63, head >> 6 << 4
    scales = xp.concatenate([low[:, :4], tail & 15 | rest[:, :4]], axis=1)
    minima = xp.concatenate([low[:, 4:], tail >> 4 | rest[:, 4:]], axis=1)
    return scales, minima
