"""Make earlier tokens less likely: the repetition, the frequency and the presence penalty."""

from collections import Counter
from collections.abc import Sequence

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.shapes import Array


def penalties(
    logits: Array,
    seen: Sequence[int],
    *,
    repetition: float,
    frequency: float,
    presence: float,
    window: int | None,
) -> Array:
    """Return the logits (V,) with those of the last `window` tokens of `seen` lowered.

    Each distinct token is treated once: a logit above 0 is divided by `repetition`, one below is
    multiplied by it; then `presence` is subtracted, and `frequency` for every time it was seen.
    Source: Keskar et al., CTRL (2019), made aware of the sign; the others are OpenAI's.
    Raises: InputError if a seen token is beyond the vocabulary.
    """
    out = logits.copy()
    for token, count in Counter(seen if window is None else seen[-window:]).items():
        if not 0 <= token < len(out):
            what = f"token id {token}, but should be 0..{len(out) - 1}"
            raise InputError("sampling", what, "earlier tokens")
        value = out[token]
        value = value / repetition if value > 0 else value * repetition
        out[token] = value - presence - frequency * count
    return out
