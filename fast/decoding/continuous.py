"""Many texts in flight at once, with one evaluation for the next token of all of them."""

from collections.abc import Iterable, Iterator
from typing import Any

from lockstep.fast.decoding import sampling
from lockstep.fast.decoding.autoregressive import chosen, fed, largest, last_logits
from lockstep.fast.decoding.speculative import brought
from lockstep.fast.decoding.speculative import largest as largest_of_each
from lockstep.fast.model import Model
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.slots import Slots
from lockstep.reference.tokenizer.in_flight import Made, Prompt, in_flight


def generate(
    model: Model, prompts: Iterable[Prompt], *, slots: int, chunk: int | None = None
) -> Iterator[Made]:
    """Yield the tokens of all texts as they are made, up to `slots` of them in flight.

    The arguments are those of `reference.decoding.continuous.generate`.
    """
    return in_flight(prompts, Batch(model, slots, chunk), slots=slots)


class Batch:
    """The rows of a model. A prompt is read by itself, and then goes on among the others."""

    def __init__(self, model: Model, slots: int, chunk: int | None):
        self.model, self.chunk = model, chunk
        self.rows: Any = Slots(slots, model.backend.zeros)  # a cache, to the model

    def read(self, prompt: Prompt) -> tuple[int, Any]:
        if not prompt.tokens:
            path = self.model.checkpoint.path
            raise InputError(path, "the prompt has no tokens, but should have one")
        cache = self.model.make_cache()
        new = fed(self.model, prompt.tokens, cache, self.chunk, None)
        return self.first(prompt, last_logits(self.model, new, cache, None)[0, 0]), cache

    def first(self, prompt: Prompt, logits: Array) -> int:
        if prompt.choose is sampling.greedy:
            return largest(self.model, logits)
        return chosen(self.model, prompt.choose, logits)

    def join(self, cache: Any) -> None:
        self.rows.join(self.model.ops, cache)

    def step(self, tokens: list[int], prompts: list[Prompt]) -> list[int]:
        logits = self.model.forward([[token] for token in tokens], cache=self.rows)[:, 0]
        if all(prompt.choose is sampling.greedy for prompt in prompts):
            return largest_of_each(self.model, logits)
        pairs = zip(prompts, brought(self.model, logits), strict=True)
        return [prompt.choose(row) for prompt, row in pairs]

    def leave(self, row: int) -> None:
        self.rows.leave(row)
