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


def decoded(words: Array, lengths: Array, bits: int, table: Tables, dtype: Any) -> Array:
    """Return the values of `coded`."""
    y = levels(table, bits)[unpacked(words, bits)]
    return (turned_back(y, table) * lengths.astype(mx.float32)).astype(dtype)


def coded_keys(x: Array, bits: int, table: Tables) -> tuple[Array, Array, Array]:
    """Return words, lengths, and lengths of what is left, of (..., D), right on average."""
    y, lengths = turned_units(x, table)
    codes = nearest(y, levels(table, bits - 1))
    left = y - levels(table, bits - 1)[codes]
    signs = (left @ arrays(table)[2].T >= 0).astype(mx.uint32)
    words = mx.concatenate([packed(codes, bits - 1), packed(signs, 1)], axis=-1)
    rest = mx.sqrt((left * left).sum(axis=-1, keepdims=True))
    return words, lengths.astype(x.dtype), rest.astype(x.dtype)


def decoded_keys(
    words: Array, lengths: Array, rest: Array, bits: int, table: Tables, dtype: Any
) -> Array:
    """Return the keys whose products with queries are the estimates of `coded_keys`."""
    split = (bits - 1) * table.width // 32
    signs = unpacked(words[..., split:], 1).astype(mx.float32) * 2 - 1
    y = levels(table, bits - 1)[unpacked(words[..., :split], bits - 1)]
    scale = rest.astype(mx.float32) * (math.sqrt(math.pi / 2) / table.width)
    y = y + scale * (signs @ arrays(table)[2])
    return (turned_back(y, table) * lengths.astype(mx.float32)).astype(dtype)


def turned_units(x: Array, table: Tables) -> tuple[Array, Array]:
    """Return R x / |x| and |x|."""
    wide, (before, after, _) = x.astype(mx.float32), arrays(table)
    lengths = mx.sqrt((wide * wide).sum(axis=-1, keepdims=True))
    units = wide / mx.where(lengths == 0, 1, lengths)
    return mx.hadamard_transform(units * before) * after, lengths


def turned_back(y: Array, table: Tables) -> Array:
    before, after, _ = arrays(table)
    return mx.hadamard_transform(y * after) * before


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


def unpacked(words: Array, bits: int) -> Array:
    lanes = (words[..., None] >> mx.arange(32, dtype=mx.uint32)) & 1
    planes = lanes.reshape(*words.shape[:-1], bits, words.shape[-1] * 32 // bits)
    shifts = mx.arange(bits, dtype=mx.uint32)[:, None]
    return (planes << shifts).sum(axis=-2)
