"""WeDLM's decoder: what rounds of it. The steps are in `reference/scheduling/diffusion.py`."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from lockstep.reference.decoding import host
from lockstep.reference.decoding.diffusion.selection import entropy, selected
from lockstep.reference.model import Model
from lockstep.reference.scheduling import diffusion
from lockstep.reference.scheduling.diffusion_options import DiffusionOptions
from lockstep.reference.scheduling.host import Choose
from lockstep.reference.shapes import Array


def generate(
    model: Model, tokens: Sequence[int], *, options: DiffusionOptions, choose: Choose, **rest: Any
) -> Iterator[int]:
    """Yield new token ids, as they become final.

    `choose` takes one mask's logits (V,) and returns an id; of a step's masks, the first is asked
    first. The other arguments are those of `scheduling.diffusion.generate`.
    """
    own = {"surest": partial(surest, options, choose), "host": host}
    return diffusion.generate(model, tokens, options=options, **own, **rest)


def surest(
    options: DiffusionOptions, choose: Choose, logits: Array, masks: Sequence[int], gone: int
) -> tuple[list[int], list[int]]:
    """Return which of the masks' rows (M, V) are filled in, and with what."""
    unsure = entropy(logits, heat=options.heat, floor=options.variant.floor)
    rows = selected(unsure, masks, options, gone=gone)
    return rows, [choose(logits[row]) for row in rows]
