"""Many texts in flight at once: each joins when there is room, and leaves when it ends."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding.autoregressive import fed, last_logits
from lockstep.reference.model import Model
from lockstep.reference.stores.slots import Slots
from lockstep.reference.tokenizer.in_flight import Made, Prompt, in_flight


def generate(
    model: Model, prompts: Iterable[Prompt], *, slots: int, chunk: int | None = None
) -> Iterator[Made]:
    """Yield the tokens of all texts as they are made, up to `slots` of them in flight.

    Each text's tokens are those of its own run by `autoregressive.generate`, but where rounding
    decides: the sums of a batch may be in another order. `chunk` is as there.
    Raises: InputError if a prompt has no tokens.
    """
    return in_flight(prompts, Batch(model, slots, chunk), slots=slots)


class Batch:
    """The rows of a model. A prompt is read by itself, and then goes on among the others."""

    def __init__(self, model: Model, slots: int, chunk: int | None):
        self.model, self.chunk = model, chunk
        self.rows: Any = Slots(slots, np.zeros)  # a cache, to the model

    def read(self, prompt: Prompt) -> tuple[int, Any]:
        if not prompt.tokens:
            path = self.model.checkpoint.path
            raise InputError(path, "the prompt has no tokens, but should have one")
        cache = self.model.make_cache()
        new = fed(self.model, prompt.tokens, cache, self.chunk, None)
        logits = last_logits(self.model, new, cache, None)
        return prompt.choose(logits[0, 0]), cache

    def join(self, cache: Any) -> None:
        self.rows.join(self.model.ops, cache)

    def step(self, tokens: list[int], prompts: list[Prompt]) -> list[int]:
        logits = self.model.forward([[token] for token in tokens], cache=self.rows)
        pairs = zip(prompts, logits[:, 0], strict=True)
        return [prompt.choose(row) for prompt, row in pairs]

    def leave(self, row: int) -> None:
        self.rows.leave(row)
