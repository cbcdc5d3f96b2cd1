"""WeDLM's decoder, a step at a time: which masks to fill in, and which tokens are then final.

Masks stand behind all tokens that are known, each at its own position, so a causal model sees from
a mask everything that is known, to its right too. What has only known tokens before it has the keys
and values that a prefill would give it, and is final.
Source: WeDLM (arXiv:2512.22737) and its engine.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import steady_length
from lockstep.reference.decoding.diffusion.selection import entropy, selected
from lockstep.reference.model import Model
from lockstep.reference.shapes import Array
from lockstep.reference.tokenizer.diffusion_options import DiffusionOptions
from lockstep.reference.tokenizer.diffusion_window import Step, Window

Watch = Callable[[str], None]
Choose = Callable[[Array], int]
Told = Callable[[Step], None]


def generate(
    model: Model,
    tokens: Sequence[int],
    *,
    options: DiffusionOptions,
    room: int,
    max_tokens: int,
    stop: Collection[int],
    choose: Choose,
    cache: Any = None,
    chunk: int | None = None,
    watch: Watch | None = None,
    read: Callable[[], None] | None = None,
    told: Told | None = None,
) -> Iterator[int]:
    """Yield up to `max_tokens` new token ids, as they become final.

    One of `stop` is yielded and ends it, if the variant stops at all. `room` is how many positions
    there are. `choose` takes one mask's logits (V,) and returns an id; of a step's masks, the first
    is asked first. `cache` may hold earlier tokens; it must be one that can be trimmed.
    `chunk` is how many tokens of the prompt go through at a time, None the variant's habit.
    `watch` is told the stages of the prefill, and of each "step" when it is done. `read` is called
    once the prompt has been read, and `told` after each step.
    Raises: InputError if there is no token to begin with.
    """
    if not max_tokens:
        return
    cache = model.make_cache() if cache is None else cache
    decoding = Decoding(model, cache, options, choose)
    decoding.prefill(tokens, chunk or options.variant.chunk, watch)
    if read is not None:
        read()
    stop = stop if options.variant.stops else ()
    window = Window(cache.positions.length, options.window, room=room, left=max_tokens, stop=stop)
    while window.slots:
        step = decoding.extend(window) if options.variant.extends else decoding.reuse(window)
        if told is not None:
            told(step)
        if watch is not None:
            watch("step")
        yield from handed_out(step.committed, cache)


def handed_out(tokens: Sequence[int], cache: Any) -> Iterator[int]:
    """Yield tokens. If nobody wants the rest, the cache forgets it."""
    left = len(tokens)
    try:
        for token in tokens:
            left -= 1
            yield token
    finally:
        cache.trim(left)


class Decoding:
    """A model and its cache, which between steps holds what is final and nothing else."""

    def __init__(self, model: Model, cache: Any, options: DiffusionOptions, choose: Choose):
        self.model, self.cache, self.options, self.choose = model, cache, options, choose

    def prefill(self, tokens: Sequence[int], chunk: int | None, watch: Watch | None) -> None:
        """Let the prompt through the model, for its keys and values alone.

        A prompt that must not be read in parts goes through at once.
        """
        if not len(tokens) and not self.cache.positions.length:
            what = "the prompt has no tokens, but should have one"
            raise InputError(self.model.checkpoint.path, what)
        steady = steady_length(self.model.config)
        if steady is not None and self.cache.positions.length + len(tokens) > steady:
            chunk = None
        size = chunk or max(1, len(tokens))
        for start in range(0, len(tokens), size):
            self.keep(tokens[start : start + size], watch)

    def keep(self, tokens: Sequence[int], watch: Watch | None = None) -> None:
        """Append tokens to the cache. Their logits, the last stage, are not computed."""
        stages = self.model.stages([list(tokens)], cache=self.cache)
        for name, _ in islice(stages, self.model.config.num_hidden_layers + 1):
            if watch is not None:
                watch(name)

    def reuse(self, window: Window) -> Step:
        """Refill the window, run it, and commit what had no mask before it when it went in."""
        ready = window.leading
        window.refill(ready)
        tokens, positions, logits = self.run(window)
        committed = window.commit(ready)
        self.cache.trim(len(tokens) - len(committed))
        filled = self.fill(window, logits, gone=len(committed))
        return Step(tokens, positions, committed, filled, list(window.slots))

    def extend(self, window: Window) -> Step:
        """Run the window, and commit what has no mask before it, in a pass of its own."""
        tokens, positions, logits = self.run(window)
        self.cache.trim(len(tokens))
        filled = self.fill(window, logits, gone=0)
        committed = window.commit(window.leading)
        if committed:
            self.keep(committed)
        window.refill(len(committed))
        return Step(tokens, positions, committed, filled, list(window.slots), len(committed))

    def run(self, window: Window) -> tuple[list[int], list[int], Array]:
        """Run a window in physical order; return tokens, positions, and masks' logits (M, V)."""
        tokens, positions = window.inputs(self.options.mask_id)
        places = np.array([positions])
        logits = self.model.forward([tokens], cache=self.cache, positions=places, reordered=True)
        return tokens, positions, logits[0, len(tokens) - len(window.masks) :]

    def fill(self, window: Window, logits: Array, *, gone: int) -> list[int]:
        """Fill in the masks that are sure; return their positions."""
        if not window.masks:
            return []
        options = self.options
        unsure = entropy(logits, heat=options.heat, floor=options.variant.floor)
        rows = selected(unsure, window.masks, options, gone=gone)
        slots = [window.masks[row] for row in rows]
        window.fill(slots, [self.choose(logits[row]) for row in rows])
        return [window.start + slot for slot in slots]
