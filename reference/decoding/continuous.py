"""Many texts in flight at once: each joins when there is room, and leaves when it ends.

Who is in flight is in `reference/scheduling/in_flight.py`, how they are fed in `rows.py` there.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from lockstep.reference.decoding import host
from lockstep.reference.model import Model
from lockstep.reference.scheduling.in_flight import Made, Prompt, in_flight
from lockstep.reference.scheduling.rows import ModelRows


def generate(
    model: Model, prompts: Iterable[Prompt], *, slots: int, chunk: int | None = None
) -> Iterator[Made]:
    """Yield the tokens of all texts as they are made, up to `slots` of them in flight.

    Each text's tokens are those of its own run by `autoregressive.generate`, but where rounding
    decides: the sums of a batch may be in another order. `chunk` is as there. What would be an
    InputError there ends that text alone, and is in its last `Made`.
    """
    return in_flight(prompts, rows_of(model, slots, chunk), slots=slots)


def rows_of(model: Model, slots: int, chunk: int | None) -> ModelRows:
    """Return the rows of a model that has no text yet."""
    return ModelRows(model, slots, chunk, zeros=np.zeros, host=host)
