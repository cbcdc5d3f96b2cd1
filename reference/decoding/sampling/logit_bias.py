"""Add a number to the logits of chosen tokens."""

from collections.abc import Iterable

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.shapes import Array


def logit_bias(logits: Array, bias: Iterable[tuple[int, float]]) -> Array:
    """Return the logits (V,) with `bias` added: pairs of an id and a number. -inf bans a token.

    Raises: InputError if an id is beyond the vocabulary.
    """
    out = logits.copy()
    for token, value in bias:
        if token >= len(out):
            what = f"token id {token}, but should be 0..{len(out) - 1}"
            raise InputError("sampling", what, "logit_bias")
        out[token] += value
    return out
