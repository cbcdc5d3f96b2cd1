"""TurboQuant on NumPy arrays: the rotation is one product with a matrix."""

from functools import lru_cache
from typing import Any

import numpy as np

from lockstep.fast.shapes import Array
from lockstep.reference.stores.turbo_tables import Tables


def coded(x: Array, bits: int, table: Tables) -> tuple[Array, Array]:
    """Return words and lengths of (..., D), least in squared error."""
    y, lengths = turned_units(x, table)
    return packed(nearest(y, levels(table, bits)), bits), lengths.astype(x.dtype)


def coded_keys(x: Array, bits: int, table: Tables) -> tuple[Array, Array, Array]:
    """Return words, lengths, and lengths of what is left, of (..., D), right on average."""
    y, lengths = turned_units(x, table)
    codes = nearest(y, levels(table, bits - 1))
    y -= levels(table, bits - 1)[codes]
    signs = (y @ projection(table).T >= 0).astype(np.uint8)
    words = np.concatenate([packed(codes, bits - 1), packed(signs, 1)], axis=-1)
    rest = np.sqrt(np.einsum("...d,...d->...", y, y))[..., None]
    return words, lengths.astype(x.dtype), rest.astype(x.dtype)


def decoded(words: Array, lengths: Array, bits: int, table: Tables, dtype: Any) -> Array:
    """Return the values of `coded`."""
    held = still_turned(words, lengths, bits, table)
    return turned_back(held, table).astype(dtype, copy=False)


def still_turned(words: Array, lengths: Array, bits: int, table: Tables) -> Array:
    """Return R x for the values x of `coded`, in float32: what needs no product."""
    return scaled(np.take(levels(table, bits), unpacked(words, bits)), lengths)


def decoded_keys(
    words: Array, lengths: Array, rest: Array, bits: int, table: Tables, dtype: Any
) -> Array:
    """Return the keys whose products with queries are the estimates of `coded_keys`."""
    held = keys_still_turned(words, lengths, rest, bits, table)
    return turned_back(held, table).astype(dtype, copy=False)


def keys_still_turned(words: Array, lengths: Array, rest: Array, bits: int, table: Tables) -> Array:
    """Return R k for the keys k of `decoded_keys`, in float32."""
    split = (bits - 1) * table.width // 32
    signs = unpacked(words[..., split:], 1).astype(np.float32)
    signs *= 2
    signs -= 1
    y = signs @ projection(table)
    with np.errstate(invalid="ignore"):
        y *= rest.astype(np.float32) * np.float32(factor(table))
    y += np.take(levels(table, bits - 1), unpacked(words[..., :split], bits - 1))
    return scaled(y, lengths)


def scaled(y: Array, lengths: Array) -> Array:
    """Return what is of length 1 as long as it was."""
    with np.errstate(invalid="ignore"):
        y *= lengths.astype(np.float32)
    return y


def turned_units(x: Array, table: Tables) -> tuple[Array, Array]:
    """Return R x / |x| and |x|."""
    wide = x.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = np.sqrt(np.einsum("...d,...d->...", wide, wide))[..., None]
        wide /= np.where(lengths == 0, np.float32(1), lengths)
        return turned(wide, table), lengths


def turned(x: Array, table: Tables) -> Array:
    """Return R x, in float32."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float32, copy=False) @ rotation(table).T


def turned_back(y: Array, table: Tables) -> Array:
    """Return R^T y, in float32."""
    with np.errstate(invalid="ignore"):
        return y.astype(np.float32, copy=False) @ rotation(table)


def projected(y: Array, table: Tables) -> Array:
    """Return S y: what is compared with signs."""
    with np.errstate(invalid="ignore"):
        return y @ projection(table).T


def terms(table: Tables, bits: int) -> Array:
    """Return what makes a level of the signs of its code's bits, (2^bits,), in float64.

    With s = 1 for a bit that is set and -1 for another, a level is the sum over all sets of bits of
    terms[set] times the product of their s. A set is the number that has those bits. Since the
    levels mirror each other, only sets of an odd number of bits have a term.
    """
    sets = np.arange(2**bits)
    clear = ~sets[:, None] & sets[None]  # of each code: which bits of each set are not set
    signs = 1 - 2 * (np.bitwise_count(clear) & 1).astype(np.float64)
    return table.levels(bits) @ signs / 2**bits


def factor(table: Tables) -> float:
    """Return what makes signs an estimate of what is left: sqrt(pi / 2) / D."""
    return float(np.sqrt(np.pi / 2) / table.width)


@lru_cache
def rotation(table: Tables) -> Array:
    """Return R as a matrix (D, D): signs, Walsh-Hadamard, signs."""
    matrix = np.ones((1, 1))
    while len(matrix) < table.width:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    whole = table.after[:, None] * matrix * table.before / np.sqrt(table.width)
    return whole.astype(np.float32)


@lru_cache
def projection(table: Tables) -> Array:
    return table.projection.astype(np.float32)


def levels(table: Tables, bits: int) -> Array:
    return table.levels(bits).astype(np.float32)


def nearest(y: Array, rising: Array) -> Array:
    """Return the number of the nearest level, by one comparison with each middle."""
    codes = np.zeros(y.shape, np.uint8)
    for middle in (rising[1:] + rising[:-1]) / 2:
        codes += y > middle
    return codes


def packed(codes: Array, bits: int) -> Array:
    """Pack (..., D) codes by planes into 32-bit words."""
    planes = (codes[..., None, :] >> np.arange(bits, dtype=np.uint8)[:, None]) & 1
    octets = np.packbits(planes, axis=-1, bitorder="little")
    return octets.reshape(*codes.shape[:-1], codes.shape[-1] * bits // 8).view("<u4")


def unpacked(words: Array, bits: int) -> Array:
    octets = np.ascontiguousarray(words).view(np.uint8)
    shape = (*words.shape[:-1], bits, words.shape[-1] * 4 // bits)
    planes = np.unpackbits(octets.reshape(shape), axis=-1, bitorder="little")
    codes = planes[..., 0, :]
    for bit in range(1, bits):
        codes |= planes[..., bit, :] << bit
    return codes
