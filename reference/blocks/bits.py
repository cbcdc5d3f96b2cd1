"""Taking codes and scales out of the bytes of blocks."""

import numpy as np

from lockstep.reference.shapes import Array


def halves(octets: Array, dtype: np.dtype) -> Array:
    """Return little-endian float16 numbers (N, bytes/2), widened exactly. Subnormals are kept."""
    return np.ascontiguousarray(octets).view("<f2").astype(dtype)


def planes(octets: Array, *, run: int, bits: int) -> Array:
    """Return the codes of runs of bytes: first the lowest `bits` of every byte, then the next.

    With runs of 16 and 4 bits, bytes 0xBA, 0xDC, ... hold A, C, ... and 16 codes later B, D, ...
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = octets.reshape(len(octets), octets.shape[1] // run, 1, run)
    return (runs >> shifts & (2**bits - 1)).reshape(len(octets), octets.shape[1] * (8 // bits))


def stream(octets: Array) -> Array:
    """Return the bits of the bytes one after another, lowest first, (N, 8*bytes)."""
    return np.unpackbits(octets, axis=1, bitorder="little")


def spread(values: Array, width: int) -> Array:
    """Repeat each group's number for its `width` weights."""
    return np.repeat(values, width, axis=1)


def six_bit_pairs(octets: Array) -> tuple[Array, Array]:
    """Return eight scales and eight minima of 6 bits out of 12 bytes, as Q4_K and Q5_K pack them.

    The first four scales and minima are the low bits of bytes 0-3 and 4-7. The other four have
    their low half in bytes 8-11, and their top two bits in what bytes 0-7 have left.
    """
    first, second, third = octets[:, :4], octets[:, 4:8], octets[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, minima
