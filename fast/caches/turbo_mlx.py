"""TurboQuant on the device: MLX turns heads by its own Walsh-Hadamard transform."""

import math
from functools import lru_cache
from typing import Any

import mlx.core as mx
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
    left = y - levels(table, bits - 1)[codes]
    signs = (left @ arrays(table)[2].T >= 0).astype(mx.uint32)
    words = mx.concatenate([packed(codes, bits - 1), packed(signs, 1)], axis=-1)
    rest = mx.sqrt((left * left).sum(axis=-1, keepdims=True))
    return words, lengths.astype(x.dtype), rest.astype(x.dtype)


def decoded(words: Array, lengths: Array, bits: int, table: Tables, dtype: Any) -> Array:
    """Return the values of `coded`."""
    y = looked_up(words, bits, table) * lengths.astype(mx.float32)
    return turned_back(y, table).astype(dtype)


def decoded_keys(
    words: Array, lengths: Array, rest: Array, bits: int, table: Tables, dtype: Any
) -> Array:
    """Return the keys whose products with queries are the estimates of `coded_keys`."""
    codes, signs = parted(words, bits, table)
    scale = rest.astype(mx.float32) * factor(table)
    y = looked_up(codes, bits - 1, table) + scale * (looked_up(signs, 0, table) @ arrays(table)[2])
    return turned_back(y * lengths.astype(mx.float32), table).astype(dtype)


def parted(words: Array, bits: int, table: Tables) -> tuple[Array, Array]:
    """Return the words of codes, and those of signs."""
    split = (bits - 1) * table.width // 32
    return words[..., :split], words[..., split:]


def factor(table: Tables) -> float:
    """Return what makes signs an estimate of what is left: sqrt(pi / 2) / D."""
    return math.sqrt(math.pi / 2) / table.width


def looked_up(words: Array, bits: int, table: Tables) -> Array:
    """Return the levels of codes, (..., D), or with 0 bits the signs: several with each lookup.

    A number of at most 16 bits has the bits of neighbouring codes, a plane behind the other.
    """
    octets = mx.unflatten(words.view(mx.uint8), -1, (max(bits, 1), -1))
    if bits > 2:
        octets = mx.flatten(mx.stack([octets & 15, octets >> 4], axis=-1), -2)
    planes = octets.astype(mx.uint16)
    numbers = planes[..., 0, :]
    for bit in range(1, bits):
        numbers = numbers | planes[..., bit, :] << bit * (4 if bits > 2 else 8)
    return mx.flatten(neighbours(bits, table)[numbers], -2)


@lru_cache
def neighbours(bits: int, table: Tables) -> Array:
    """Return the levels that each number of `looked_up` has, (numbers, 4 or 8): at most 2 MiB."""
    each, planes = (4 if bits > 2 else 8), max(bits, 1)
    numbers = np.arange(2 ** (each * planes))[:, None]
    codes = sum((numbers >> each * bit + np.arange(each) & 1) << bit for bit in range(planes))
    levels = table.levels(bits) if bits else np.array([-1.0, 1.0])
    return mx.array(levels[codes].astype(np.float32))


def turned_units(x: Array, table: Tables) -> tuple[Array, Array]:
    """Return R x / |x| and |x|."""
    wide = x.astype(mx.float32)
    lengths = mx.sqrt((wide * wide).sum(axis=-1, keepdims=True))
    return turned(wide / mx.where(lengths == 0, 1, lengths), table), lengths


def turned(x: Array, table: Tables) -> Array:
    """Return R x, in float32."""
    before, after, _ = arrays(table)
    return mx.hadamard_transform(x.astype(mx.float32) * before) * after


def turned_back(y: Array, table: Tables) -> Array:
    """Return R^T y, in float32."""
    before, after, _ = arrays(table)
    return mx.hadamard_transform(y.astype(mx.float32) * after) * before


def projected(y: Array, table: Tables) -> Array:
    """Return S y: what is compared with signs."""
    return y @ arrays(table)[2].T


@lru_cache
def arrays(table: Tables) -> tuple[Array, Array, Array]:
    """Copy the signs and the projection over."""
    held = (table.before, table.after, table.projection)
    before, after, projection = (mx.array(one.astype(np.float32)) for one in held)
    return before, after, projection


def levels(table: Tables, bits: int) -> Array:
    return mx.array(table.levels(bits).astype(np.float32))


def nearest(y: Array, rising: Array) -> Array:
    """Return the number of the nearest level, by one comparison with each middle."""
    codes = mx.zeros(y.shape, mx.uint32)
    for number in range(len(rising) - 1):
        codes = codes + (y > (rising[number] + rising[number + 1]) / 2)
    return codes


def packed(codes: Array, bits: int) -> Array:
    """Pack (..., D) codes by planes into 32-bit words."""
    lanes = mx.unflatten(codes, -1, (codes.shape[-1] // 32, 32))
    shifts = mx.arange(32, dtype=mx.uint32)
    planes = [(((lanes >> bit) & 1) << shifts).sum(axis=-1) for bit in range(bits)]
    return mx.concatenate(planes, axis=-1).astype(mx.uint32)
