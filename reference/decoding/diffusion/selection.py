"""Which masks are filled in: those of which the model is sure."""

from collections.abc import Sequence

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.diffusion_options import DiffusionOptions
from lockstep.reference.shapes import Array


def entropy(logits: Array, *, heat: float, floor: float) -> Array:
    """Return how unsure each row is, in nats: (M, V) -> (M,), in float64.

        H = -sum p ln(p + floor)   with   p = softmax(logits / heat)

    Edges: a logit of -inf has p = 0 and adds nothing. All equal: H = ln V.
    Raises: InputError if a row holds NaN or +inf, or nothing above -inf.
    """
    wide = logits.astype(np.float64) / heat
    best = wide.max(axis=-1, keepdims=True)
    if not np.isfinite(best).all():
        raise InputError("logits", f"the largest of a mask is {best.max()}, but should be finite")
    shifted = wide - best
    powers = np.exp(shifted)
    total = powers.sum(axis=-1, keepdims=True)
    probs = powers / total
    if floor:
        return -(probs * np.log(probs + floor)).sum(axis=-1)
    surprise = np.log(total) - np.where(powers > 0, shifted, 0)  # so that 0 ln 0 is 0
    return (probs * surprise).sum(axis=-1)


def selected(
    entropies: Array, masks: Sequence[int], options: DiffusionOptions, *, gone: int
) -> list[int]:
    """Return which of the masks are filled in, as numbers of rows: those below the threshold.

    To each entropy the position penalty is added, for each slot of distance. If none is below, or
    there is no threshold, the smallest sum alone is taken, the first of equals. `masks` are slots;
    `gone` is how many have left the front since the window was run.
    """
    base = -gone if options.penalty == "window" else masks[0]
    distance = np.array(masks) - base
    sums = entropies + options.position_penalty * distance
    if options.threshold is not None and (sums < options.threshold).any():
        return np.flatnonzero(sums < options.threshold).tolist()
    return [int(np.argmin(sums))]
