"""How many bytes a key/value cache must take: by arithmetic, from the config alone."""

from __future__ import annotations

from typing import Any

from lockstep.reference.stores.codecs import affine_group, whole_group
from lockstep.reference.stores.kinds import (
    AFFINE_BITS,
    RECENT,
    ROTATING,
    TURBO_BITS,
    UNBIASED,
    CacheOptions,
    codes_width,
    heads_of,
    layer_kinds,
)


def cache_bytes(kind: str, config: Any, itemsize: int, tokens: int, options: CacheOptions) -> int:
    """Return the bytes of `tokens` tokens of one row, the last of which came alone.

    `itemsize` is that of the model's dtype. Room that is still empty is not counted.
    """
    layers = range(config.num_hidden_layers)
    owning = [one for one in layers if not hasattr(config, "owns_keys") or config.owns_keys(one)]
    return sum(of_layer(kind, config, one, itemsize, tokens, options) for one in owning)


def of_layer(
    kind: str, config: Any, layer: int, itemsize: int, tokens: int, options: CacheOptions
) -> int:
    heads, width = heads_of(config, layer)
    plain = 2 * width * itemsize  # a key and a value
    if kind in ROTATING:
        return heads * min(tokens, options.size or tokens) * plain
    if kind == "sliding" and layer_kinds(config)[layer] == "sliding_attention":
        return heads * min(tokens, config.sliding_window) * plain
    if not codes_width(kind, width):
        return heads * tokens * plain
    recent = RECENT if options.recent is None else options.recent
    coded = max(0, tokens - 1 - recent) if kind in TURBO_BITS else tokens
    codes = of_codes(kind, width, itemsize)
    return heads * (coded * codes + (tokens - coded) * plain)


def of_codes(kind: str, width: int, itemsize: int) -> int:
    """Return the bytes of a key and a value of one head: codes, and what belongs to them."""
    if kind == "int8":
        return 2 * (width + itemsize * width // whole_group(width))
    if kind in AFFINE_BITS:
        groups = width // affine_group(width)
        return 2 * (width * AFFINE_BITS[kind] // 8 + 2 * groups * itemsize)  # scales and offsets
    if kind in TURBO_BITS:
        lengths = 3 if kind in UNBIASED else 2  # an unbiased key has that of what is left, too
        return 2 * (width * TURBO_BITS[kind] // 8) + lengths * itemsize
    return 2 * width * itemsize
