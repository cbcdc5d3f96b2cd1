"""WeDLM's decoder with one evaluation a step: logits stay where they are."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from lockstep.fast.decoding import host, sampling
from lockstep.fast.decoding.diffusion.selection import selected
from lockstep.fast.model import Model
from lockstep.fast.shapes import Array
from lockstep.reference.scheduling import diffusion
from lockstep.reference.scheduling.diffusion_options import DiffusionOptions
from lockstep.reference.scheduling.host import Choose


def generate(
    model: Model, tokens: Sequence[int], *, options: DiffusionOptions, choose: Choose, **rest: Any
) -> Iterator[int]:
    """Yield new token ids, as they become final.

    `choose` takes one mask's logits (V,) in NumPy, the first of a step's masks first;
    `sampling.greedy` is not asked, since the backend finds the largest where the logits are.
    """
    own = {"surest": partial(surest, model, options, choose), "host": host}
    return diffusion.generate(model, tokens, options=options, **own, **rest)


def surest(
    model: Model,
    options: DiffusionOptions,
    choose: Choose,
    logits: Array,
    masks: Sequence[int],
    gone: int,
) -> tuple[list[int], list[int]]:
    """Return which of the masks' rows (M, V) are filled in, and with what, by one evaluation."""
    backend = model.backend
    unsure = backend.entropy(logits, heat=options.heat, floor=options.variant.floor)
    best = backend.argmax(logits) if choose is sampling.greedy else logits
    backend.evaluate(unsure, best)
    rows = selected(backend.host(unsure), masks, options, gone=gone)
    return rows, chosen(choose, backend.host(best)[rows])


def chosen(choose: Choose, best: np.ndarray) -> list[int]:
    """Return the tokens of some masks, whose ids these are (M,), or whose logits (M, V)."""
    if best.ndim == 1:
        return best.tolist()
    return [choose(row.astype(np.float32, copy=False)) for row in best]
