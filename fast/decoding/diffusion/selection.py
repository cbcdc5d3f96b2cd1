"""Which masks are filled in: those of which the model is sure."""

from collections.abc import Sequence

import numpy as np

from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.diffusion_options import DiffusionOptions


def selected(
    entropies: Array, masks: Sequence[int], options: DiffusionOptions, *, gone: int
) -> list[int]:
    """Return which of the masks are filled in, as numbers of rows: those below the threshold.

    Differs from the reference: entropies were summed up in float32 on the device, where a logit
    that is no number was not noticed. Here it is.
    """
    wrong = np.flatnonzero(~np.isfinite(entropies))
    if len(wrong):
        what = f"the entropy of mask {wrong[0]} is {entropies[wrong[0]]}, but should be finite"
        raise InputError("logits", what)
    base = -gone if options.penalty == "window" else masks[0]
    sums = entropies.astype(np.float64) + options.position_penalty * (np.array(masks) - base)
    sure = [] if options.threshold is None else np.flatnonzero(sums < options.threshold).tolist()
    return sure or [int(sums.argmin())]
