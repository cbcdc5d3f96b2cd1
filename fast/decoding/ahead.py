"""Greedy tokens, each step begun before the host has the id that it reads.

The id is chosen on the device and looked up there. So the host puts the next step's graph together
while the device computes this one, and the device does not wait for the host in between.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.fast.chosen import Chosen
from lockstep.fast.decoding import host
from lockstep.fast.model import Model
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.feeding import Watch, check_prompt, fed, last_logits, last_of
from lockstep.reference.scheduling.host import whole
from lockstep.reference.stores.held_positions import HeldPositions


@dataclass(frozen=True)
class Step:
    """A step that the device works at: the id that it chooses (1,), and that id's logit (1,).

    `stages` are the names of its stages.
    """

    ids: Array
    values: Array
    stages: Sequence[str]

    def token(self) -> int:
        """Wait for the id. Raises: InputError if its logit is not finite."""
        return whole(host.finite(self.ids, self.values)[0])


def generate(
    model: Model,
    tokens: Sequence[int],
    *,
    max_tokens: int,
    stop: Collection[int],
    cache: Any,
    chunk: int | None,
    watch: Watch | None,
) -> Iterator[int]:
    """Yield what `reference.scheduling.autoregressive.generate` yields with `sampling.greedy`.

    Whoever takes a token finds the cache without the step ahead of it: it has to step back.
    `watch` is told the stages of a step once the token that it reads was taken.
    """
    check_prompt(model, tokens)
    if max_tokens < 1:
        return
    new = fed(model, list(tokens), cache, chunk, watch, host)
    step = begun(model, last_logits(model, new, cache, watch))
    for left in reversed(range(max_tokens)):
        length = cache.positions.length
        following = behind(model, step, cache) if left else None
        token = step.token()
        yield token
        if token in stop or following is None:
            return
        if cache.positions.length != length:  # somebody fed it meanwhile
            following = behind(model, step, cache)
        step, cache.positions = whole(following[0]), following[1]
        tell(watch, step.stages)


def behind(model: Model, step: Step, cache: Any) -> tuple[Step | InputError, HeldPositions]:
    """Begin the step that reads what `step` chooses; return it, and the positions held with it.

    Or the error that it meets: the token before it is still to be had. The cache keeps the
    positions that it has: what stands behind them in its stores is written over, or held then.
    """
    here, names = cache.positions, []
    cache.positions = here.branch()
    try:
        stages = model.stages(Chosen(step.ids[None]), cache=cache, last_only=True)
        logits = last_of(stages, names.append)[0]
        return begun(model, logits, names), cache.positions
    except InputError as error:
        return error, here
    finally:
        cache.positions = here


def begun(model: Model, logits: Array, stages: Sequence[str] = ()) -> Step:
    """Begin to choose from logits (1, V)."""
    step = Step(model.backend.argmax(logits), logits.max(axis=-1), stages)
    model.backend.begin(step.ids, step.values)
    return step


def tell(watch: Watch | None, names: Iterable[str]) -> None:
    if watch is not None:
        for name in names:
            watch(name)
