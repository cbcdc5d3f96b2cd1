"""Results come over from the device, with one evaluation; of greedy tokens the ids alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.fast.decoding import sampling
from lockstep.fast.model import Model
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.host import Choose, attempt


def computed(model: Model, cache: Any) -> None:
    """Compute what a cache is to hold."""
    model.backend.evaluate(*cache.arrays())


def choices(model: Model, logits: Array, chooses: Sequence[Choose]) -> Sequence[int | InputError]:
    """Let each of the rows (R, V) be chosen from by its own `choose`.

    Differs from the reference: where all are `sampling.greedy`, none is asked.
    """
    if all(choose is sampling.greedy for choose in chooses):
        return largest(model, logits)
    rows = brought(model, logits)
    return [attempt(choose, row) for choose, row in zip(chooses, rows, strict=True)]


def largest(model: Model, logits: Array) -> list[int | InputError]:
    """Find the largest logit of each row on the device; ids and logits come over at once."""
    tokens, values = model.backend.argmax(logits), logits.max(axis=-1)
    model.backend.evaluate(tokens, values)
    return finite(tokens, values)


def finite(tokens: Array, values: Array) -> list[int | InputError]:
    """Return ids (R,) whose logits (R,) are finite, and in the place of others what they are."""
    return [
        token
        if np.isfinite(value)
        else InputError("logits", f"logit {token} is {value}, but should be finite")
        for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
    ]


def brought(model: Model, logits: Array) -> np.ndarray:
    """Bring the logits over, which computes them."""
    return model.backend.host(logits).astype(np.float32, copy=False)
