"""Products with codes in MLX's affine format as they are packed: by MLX's own operation."""

import mlx.core as mx

from lockstep.fast.caches.held_codes import HeldCodes
from lockstep.fast.shapes import Array
from lockstep.reference.stores.codecs import affine_group


def compared(queries: Array, keys: HeldCodes) -> Array:
    """Return the scores of scaled queries (B, G, M, D) with what is in codes: (B, G, M, S)."""
    return product(queries, keys, transpose=True)


def averaged(probs: Array, values: HeldCodes) -> Array:
    """Return the sum of what is in codes by probabilities (B, G, M, S): (B, G, M, D)."""
    return product(probs, values, transpose=False)


def product(left: Array, held: HeldCodes, *, transpose: bool) -> Array:
    """Multiply each group's rows with the matrix of its tokens (S, D), or with its transpose."""
    group = affine_group(held.like.shape[-1])
    return mx.quantized_matmul(
        left, *held.codes, transpose=transpose, group_size=group, bits=held.codec.bits
    )
