"""WeDLM's decoder, a step at a time: which masks to fill in, and which tokens are then final.

Masks stand behind all tokens that are known, each at its own position, so a causal model sees from
a mask everything that is known, to its right too. What has only known tokens before it has the keys
and values that a prefill would give it, and is final.
Source: WeDLM (arXiv:2512.22737) and its engine.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.diffusion_options import DiffusionOptions
from lockstep.reference.scheduling.diffusion_window import Step, Window
from lockstep.reference.scheduling.feeding import (
    Watch,
    beyond_steady,
    check_chunk,
    check_prompt,
    keep,
)
from lockstep.reference.scheduling.host import Host

Told = Callable[[Step], None]
# Takes the logits of the masks (M, V), their slots and how many have left the front since the
# window was run; returns which rows are filled in, and with what.
Surest = Callable[[Any, Sequence[int], int], tuple[Sequence[int], Sequence[int]]]


def generate(
    model: Any,
    tokens: Sequence[int],
    *,
    options: DiffusionOptions,
    room: int,
    max_tokens: int,
    stop: Collection[int],
    cache: Any = None,
    chunk: int | None = None,
    watch: Watch | None = None,
    read: Callable[[], None] | None = None,
    told: Told | None = None,
    surest: Surest,
    host: Host,
) -> Iterator[int]:
    """Yield up to `max_tokens` new token ids, as they become final.

    One of `stop` is yielded and ends it, if the variant stops at all. `room` is how many positions
    there are. `cache` may hold earlier tokens; it must be one that can be trimmed.
    `chunk` is how many tokens of the prompt go through at a time, None the variant's habit.
    `watch` is told the stages of the prefill, and of each "step" when it is done. `read` is called
    once the prompt has been read, and `told` after each step. `surest` and `host` are the
    package's.
    Raises: InputError if there is no token to begin with, or none can be chosen for a mask.
    """
    if max_tokens < 1:
        return
    cache = model.make_cache() if cache is None else cache
    decoding = Decoding(model, cache, options, surest, host)
    decoding.prefill(tokens, options.variant.chunk if chunk is None else chunk, watch)
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
        if decoding.failed is not None:
            raise decoding.failed


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

    def __init__(
        self, model: Any, cache: Any, options: DiffusionOptions, surest: Surest, host: Host
    ):
        self.model, self.cache, self.options = model, cache, options
        self.surest, self.host = surest, host
        self.failed: InputError | None = None  # why masks cannot be filled in

    def prefill(self, tokens: Sequence[int], chunk: int | None, watch: Watch | None) -> None:
        """Let the prompt through the model, for its keys and values alone.

        A prompt that must not be read in parts goes through at once.
        """
        check_chunk(chunk)
        if not self.cache.positions.length:
            check_prompt(self.model, tokens)
        if beyond_steady(self.model, self.cache.positions.length + len(tokens)):
            chunk = None
        size = chunk or max(1, len(tokens))
        for start in range(0, len(tokens), size):
            keep(self.model, tokens[start : start + size], self.cache, watch)
            self.host.computed(self.model, self.cache)

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
            keep(self.model, committed, self.cache)
        window.refill(len(committed))
        return Step(tokens, positions, committed, filled, list(window.slots), len(committed))

    def run(self, window: Window) -> tuple[list[int], list[int], Any]:
        """Run a window in physical order; return tokens, positions, and masks' logits (M, V)."""
        tokens, positions = window.inputs(self.options.mask_id)
        places = np.array([positions])
        logits = self.model.forward([tokens], cache=self.cache, positions=places, reordered=True)
        return tokens, positions, logits[0, len(tokens) - len(window.masks) :]

    def fill(self, window: Window, logits: Any, *, gone: int) -> list[int]:
        """Fill in the masks that are sure; return their positions.

        An error waits until the step's tokens, which are final, have been handed out.
        """
        if not window.masks:
            return []
        try:
            rows, tokens = self.surest(logits, window.masks, gone)
        except InputError as error:
            self.failed = error
            return []
        slots = [window.masks[row] for row in rows]
        window.fill(slots, tokens)
        return [window.start + slot for slot in slots]
