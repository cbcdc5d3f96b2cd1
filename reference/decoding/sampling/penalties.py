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
    uncounted: int,
) -> Array:
    """Return the logits (V,) with those of the last `window` tokens of `seen` lowered.

    Each distinct token is treated once: a logit above 0 is divided by `repetition`, one below is
    multiplied by it; then `presence` is subtracted, and `frequency` for every time it was seen,
    where the first `uncounted` tokens of `seen` do not count.
    Source: Keskar et al., CTRL (2019), made aware of the sign; the others are OpenAI's.
    Raises: InputError if a seen token is beyond the vocabulary.
    """
    out = logits.copy()
    start = 0 if window is None else max(len(seen) - window, 0)
    counts = Counter(seen[max(start, uncounted) :])
    for token in {*seen[start:]}:
        if not 0 <= token < len(out):
            what = f"token id {token}, but should be 0..{len(out) - 1}"
            raise InputError("sampling", what, "earlier tokens")
        value = out[token]
        value = value / repetition if value > 0 else value * repetition
        count = counts[token]
        out[token] = value - presence - frequency * count if count else value
    return out
