"""Frequencies of rope as engines make them in float32.

An exponent that is rounded to float32 puts a frequency several units in the last place off, where
heads are not a power of two wide. So does Llama 3's blend, which hangs on a small difference.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.reference import ops
from lockstep.reference.shapes import Frequencies

KINDS = [name for name in ops.__all__ if name.startswith("rope_frequencies")]
APART = 2.0**-22  # relative, of the length that Llama 3's blend compares, in float32


def in_float32(kind: str) -> Callable[..., Any]:
    """Return an operation that makes frequencies as far off as float32 makes plain ones."""
    right = getattr(ops, kind)

    def made(*lengths: Any, **options: Any) -> Any:
        return right(*lengths, **options) * as_in_float32(options["theta"], options["dims"])

    return made


def as_in_float32(theta: float, dims: int) -> np.ndarray:
    """Return how much larger than they are plain frequencies are in float32, as PyTorch has them:
    a power, and its reciprocal.
    """
    exponents = np.arange(0, dims, 2).astype(np.float32) / np.float32(dims)
    made = np.float32(1) / np.float32(theta) ** exponents
    return made / ops.rope_frequencies(theta=theta, dims=dims)


def nearby_llama3(**options: Any) -> Frequencies:
    """Blend by a length that is a little longer for every other pair, and shorter for the rest."""
    original = options.pop("original_max_position_embeddings")
    longer, shorter = (
        ops.rope_frequencies_llama3(**options, original_max_position_embeddings=original * share)
        for share in (1 + APART, 1 - APART)
    )
    return np.where(np.arange(len(longer)) % 2, shorter, longer)
