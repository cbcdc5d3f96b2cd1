"""Many texts in flight at once, with one evaluation for the next token of all of them."""

from collections.abc import Iterable, Iterator

from lockstep.fast.decoding import host
from lockstep.fast.model import Model
from lockstep.reference.scheduling.in_flight import Made, Prompt, in_flight
from lockstep.reference.scheduling.rows import ModelRows


def generate(
    model: Model, prompts: Iterable[Prompt], *, slots: int, chunk: int | None = None
) -> Iterator[Made]:
    """Yield the tokens of all texts as they are made, up to `slots` of them in flight.

    The arguments are those of `reference.decoding.continuous.generate`.
    """
    return in_flight(prompts, rows_of(model, slots, chunk), slots=slots)


def rows_of(model: Model, slots: int, chunk: int | None) -> ModelRows:
    """Return the rows of a model that has no text yet."""
    return ModelRows(model, slots, chunk, zeros=model.backend.zeros, host=host)
