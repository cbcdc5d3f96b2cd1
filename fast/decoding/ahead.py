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

    A step that nobody turns out to want is taken back out of the cache, which has to step back.
    `watch` is told the stages of a step once the token that it reads was taken.
    """
    check_prompt(model, tokens)
    if max_tokens < 1:
        return
    new = fed(model, list(tokens), cache, chunk, watch, host)
    step = begun(model, last_logits(model, new, cache, watch))
    try:
        wanted = cache.positions.length
        for left in reversed(range(max_tokens)):
            following = behind(model, step, cache) if left else None
            token = step.token()
            yield token
            if token in stop or following is None:
                return
            step, wanted = taken(following), wanted + 1
            tell(watch, step.stages)
    finally:
        cache.trim(max(0, cache.positions.length - wanted))


def behind(model: Model, step: Step, cache: Any) -> Step | InputError:
    """Begin the step that reads what `step` chooses.

    Or return the error that it meets: the token before it is still to be had.
    """
    chosen, names = Chosen(step.ids[None]), []
    try:
        stages = model.stages(chosen, cache=cache, last_only=True)
        logits = last_of(stages, names.append)[0]
    except InputError as error:
        return error
    return begun(model, logits, names)


def begun(model: Model, logits: Array, stages: Sequence[str] = ()) -> Step:
    """Begin to choose from logits (1, V)."""
    step = Step(model.backend.argmax(logits), logits.max(axis=-1), stages)
    model.backend.begin(step.ids, step.values)
    return step


def tell(watch: Watch | None, names: Iterable[str]) -> None:
    if watch is not None:
        for name in names:
            watch(name)


def taken(following: Step | InputError) -> Step:
    if isinstance(following, InputError):
        raise following
    return following
