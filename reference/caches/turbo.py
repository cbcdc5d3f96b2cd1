"""TurboQuant: keys and values turned at random, and each coordinate rounded to a few levels."""

from typing import Any

import numpy as np

from lockstep.reference.precision import accumulator
from lockstep.reference.shapes import Array
from lockstep.reference.stores.turbo_tables import Tables


def coded(x: Array, bits: int, table: Tables) -> tuple[Array, Array]:
    """Return words and lengths of (..., D), least in squared error.

        n = |x|,  y = R x / n,  code = the level nearest to each coordinate of y

    Rounding: in float32 (float64 for float64); lengths to the dtype of `x`. Edges: zeros stay
    zeros; a value that is not finite spoils its head.
    """
    y, lengths = turned_units(x, table)
    return packed(nearest(y, table.levels(bits).astype(y.dtype)), bits), lengths.astype(x.dtype)


def decoded(words: Array, lengths: Array, bits: int, table: Tables, dtype: Any) -> Array:
    """Return R^T levels[code] * n: the values of `coded`."""
    wide = accumulator(dtype)
    y = table.levels(bits).astype(wide)[unpacked(words, bits)]
    with np.errstate(invalid="ignore"):
        return (turned_back(y, table) * lengths.astype(wide)).astype(dtype)


def coded_keys(x: Array, bits: int, table: Tables) -> tuple[Array, Array, Array]:
    """Return words, lengths, and lengths of what is left, of (..., D), right on average.

        c = the nearest level in bits - 1 bits,  r = y - c,  signs = sign(S r)

    The last D bits of a word stream are the signs. Rounding and edges: as `coded`.
    """
    y, lengths = turned_units(x, table)
    levels = table.levels(bits - 1).astype(y.dtype)
    codes = nearest(y, levels)
    left = y - levels[codes]
    signs = (left @ table.projection.astype(y.dtype).T >= 0).astype(np.uint8)
    words = np.concatenate([packed(codes, bits - 1), packed(signs, 1)], axis=-1)
    rest = np.sqrt((left * left).sum(axis=-1, keepdims=True))
    return words, lengths.astype(x.dtype), rest.astype(x.dtype)


def decoded_keys(
    words: Array, lengths: Array, rest: Array, bits: int, table: Tables, dtype: Any
) -> Array:
    """Return the key whose product with a query is the estimate of `coded_keys`.

        R^T (c + sqrt(pi / 2) / D * |r| * S^T signs) * n

    S has independent normal entries, so S^T sign(S r) is D sqrt(2 / pi) r / |r| on average.
    """
    wide, width = accumulator(dtype), table.width
    split = (bits - 1) * width // 32
    signs = unpacked(words[..., split:], 1).astype(wide) * 2 - 1
    y = table.levels(bits - 1).astype(wide)[unpacked(words[..., :split], bits - 1)]
    with np.errstate(invalid="ignore"):
        scale = rest.astype(wide) * wide.type(np.sqrt(np.pi / 2) / width)
        y = y + scale * (signs @ table.projection.astype(wide))
        return (turned_back(y, table) * lengths.astype(wide)).astype(dtype)


@np.errstate(invalid="ignore", over="ignore")  # of what is not finite
def turned_units(x: Array, table: Tables) -> tuple[Array, Array]:
    """Return R x / |x| and |x|, (..., D) and (..., 1). Zeros stay zeros."""
    wide = x.astype(accumulator(x.dtype))
    lengths = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
    units = wide / np.where(lengths == 0, 1, lengths)
    signs = [one.astype(wide.dtype) for one in (table.before, table.after)]
    return hadamard(units * signs[0]) * signs[1], lengths


def turned_back(y: Array, table: Tables) -> Array:
    """Return R^T y: the same signs and transform in reverse order."""
    signs = [one.astype(y.dtype) for one in (table.before, table.after)]
    return hadamard(y * signs[1]) * signs[0]


def hadamard(x: Array) -> Array:
    """Return the Walsh-Hadamard transform of (..., D), over sqrt(D): its own inverse."""
    shape, half = x.shape, 1
    while half < shape[-1]:
        pairs = x.reshape(*shape[:-1], -1, 2, half)
        one, other = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([one + other, one - other], axis=-2).reshape(shape)
        half *= 2
    return x * x.dtype.type(shape[-1] ** -0.5)


def nearest(y: Array, levels: Array) -> Array:
    """Return the number of the nearest level; the lower of two that are as near. NaN gives 0."""
    middles = (levels[1:] + levels[:-1]) / 2
    return (y[..., None] > middles).sum(axis=-1).astype(np.uint8)


def packed(codes: Array, bits: int) -> Array:
    """Pack (..., D) codes by planes, (..., bits * D / 32): first all lowest bits, and so on."""
    planes = [np.packbits(codes >> bit & 1, axis=-1, bitorder="little") for bit in range(bits)]
    return np.concatenate(planes, axis=-1).view("<u4")


def unpacked(words: Array, bits: int) -> Array:
    """Return the codes of `packed`."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    planes = np.unpackbits(octets, axis=-1, bitorder="little")
    planes = planes.reshape(*words.shape[:-1], bits, words.shape[-1] * 32 // bits)
    shifts = np.arange(bits, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(planes << shifts, axis=-2)
