"""A port that can be called: tokens in, logits out, whatever it is made of."""

from typing import Any, Protocol

import numpy as np

from lockstep.reference.checkpoint.errors import InputError


class Refused(Exception):
    """The port does not take a call of this kind. One line."""


class Port(Protocol):
    """`batches`, `cached` and `padded` say why a port cannot be asked for that, "" if it can."""

    name: str
    vocabulary: int | None
    batches: str
    cached: str
    padded: str

    def logits(
        self, tokens: np.ndarray, *, cache: Any = None, lengths: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the logits (B, L, V) of tokens (B, L). Raises: Refused; InputError."""
        ...

    def make_cache(self) -> Any:
        """Return an empty cache for one batch."""
        ...


def shaped(logits: np.ndarray, tokens: np.ndarray, name: str) -> np.ndarray:
    """Return logits as (B, L, V); a port of one sequence may leave the batch out.

    Raises: InputError for any other shape, or for what are no floats.
    """
    batch, length = tokens.shape
    if logits.ndim == 2 and batch == 1:
        logits = logits[None]
    if logits.ndim != 3 or logits.shape[:2] != (batch, length) or not logits.shape[-1]:
        found, wanted = list(logits.shape), f"[{batch}, {length}, V]"
        raise InputError(name, f"logits of shape {found}, but should be {wanted}")
    if logits.dtype.name not in ("float64", "float32", "float16", "bfloat16"):
        raise InputError(name, f"logits of dtype {logits.dtype.name}, but should be floats")
    return logits
