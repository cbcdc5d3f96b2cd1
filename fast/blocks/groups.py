"""What every block format comes down to: groups of codes, each with a scale and an offset."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Groups:
    """A weight is `scale * code + offset`.

    codes    (N, groups, width) unsigned bytes, or float32 where they are levels out of a table
    scales   (N, groups) float32, exact
    offsets  (N, groups) float32, exact; None is 0
    """

    codes: Any
    scales: Any
    offsets: Any


def half(blocks: Any, start: int, xp: Any) -> Any:
    """Return the float16 at a byte of each block as float32, (N, 1)."""
    low, high = blocks[:, start].astype(xp.uint16), blocks[:, start + 1].astype(xp.uint16)
    return (low | high << 8).view(xp.float16).astype(xp.float32)[:, None]


def fields(octets: Any, run: int, bits: int, xp: Any) -> Any:
    """Return the bit fields of bytes, by field within each run of bytes, as (N, fields)."""
    mask, steps = (1 << bits) - 1, range(0, 8, bits)
    runs = octets.reshape(octets.shape[0], octets.shape[1] // run, run)
    parts = xp.stack([runs >> step & mask for step in steps], axis=2)
    return parts.reshape(octets.shape[0], octets.shape[1] * len(steps))


def grouped(codes: Any, width: int) -> Any:
    return codes.reshape(codes.shape[0], codes.shape[1] // width, width)
