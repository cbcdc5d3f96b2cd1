"""Blocks of 32 weights whose codes name levels of a table: IQ4_NL, MXFP4."""

from typing import Any

from lockstep.fast.blocks.groups import Groups, fields, grouped, half

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MAGNITUDES = (0, 1, 2, 3, 4, 6, 8, 12)
E2M1_DOUBLED = (*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES))


def iq4_nl(blocks: Any, xp: Any) -> Groups:
    return Groups(named(blocks[:, 2:], IQ4, xp), half(blocks, 0, xp), None)


def mxfp4(blocks: Any, xp: Any) -> Groups:
    """The table is doubled, so that half of each power of two is wanted: byte e means 2**(e-128).

    It is made of the bits of a float32. Bytes 0 and 1 give powers that only subnormals reach.
    """
    power = blocks[:, :1].astype(xp.uint32)
    bits = xp.where(power < 2, (power + 1) << 21, (xp.maximum(power, 1) - 1) << 23)
    scales = bits.astype(xp.uint32).view(xp.float32)
    return Groups(named(blocks[:, 1:], E2M1_DOUBLED, xp), scales, None)


def named(octets: Any, levels: tuple[int, ...], xp: Any) -> Any:
    codes = fields(octets, 16, 4, xp).astype(xp.int32)
    return grouped(xp.take(xp.array(levels, dtype=xp.float32), codes), 32)
