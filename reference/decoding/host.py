"""Results are in NumPy as they come."""

from collections.abc import Sequence
from typing import Any

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model
from lockstep.reference.scheduling.host import Choose, attempt
from lockstep.reference.shapes import Array


def computed(model: Model, cache: Any) -> None:
    """Do nothing: what a cache holds is there."""


def choices(model: Model, logits: Array, chooses: Sequence[Choose]) -> Sequence[int | InputError]:
    """Let each of the rows (R, V) be chosen from by its own `choose`."""
    return [attempt(choose, row) for choose, row in zip(chooses, logits, strict=True)]


def brought(model: Model, logits: Array) -> Array:
    """Return the logits: they are here."""
    return logits
