"""Time engines in turn, so that what slows the machine for a while slows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np

from lockstep.parity.bench.timing import Round
from lockstep.reference.checkpoint.errors import InputError


class Timed(Protocol):
    """An engine that is told to run a round, and to measure what the machine allows it."""

    def run(self, prompt: list[int], decode: int) -> Round: ...

    def limits(self, tokens: int) -> dict[str, float] | None: ...


@dataclass(frozen=True)
class Spread:
    """A rate over the rounds: the median, the slowest and the fastest round."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """One engine's rounds with one prompt. `limits` are the best measured; None where there are
    none."""

    name: str
    prefill: Spread
    decode: Spread
    first_token_s: float
    tokens: list[int]
    peak_bytes: int
    limits: dict[str, float] | None


def measure(
    engines: Mapping[str, Timed],
    prompts: Sequence[list[int]],
    *,
    decode: int,
    rounds: int,
    progress: Callable[[str], None],
    leave_out: Callable[[str, InputError], None],
) -> list[list[Timing]]:
    """Run every engine on every prompt to warm up, then each prompt `rounds` times, in turn.

    `decode` tokens are generated greedily after each prefill. Memory is looked at while engines
    warm up, from the shortest prompt on. The limits are measured when all rounds are over: what
    measures them keeps cores busy for a while. An engine that fails is given to `leave_out`, which
    may raise; otherwise it is gone from all prompts, with what was measured of it.
    """
    left = dict(engines)

    def turn(prompt: list[int]) -> dict[str, Round]:
        return turn_of(left, lambda one: one.run(prompt, decode), progress, leave_out)

    def limit(prompt: list[int]) -> list[dict[str, Any]]:
        many, asked = range(rounds), len(prompt)
        return [turn_of(left, lambda e: e.limits(asked), progress, leave_out) for _ in many]

    warm = [turn(prompt) for prompt in prompts]
    made = [[turn(prompt) for _ in range(rounds)] for prompt in prompts]
    limits = [limit(prompt) for prompt in prompts]
    return [
        [
            timing(name, [one[name] for one in made[at]], [one[name] for one in limits[at]],
                   warm[at][name], len(prompt), decode)
            for name in left
        ]
        for at, prompt in enumerate(prompts)
    ]  # fmt: skip


def turn_of(
    engines: dict[str, Timed], ask: Callable[[Timed], Any], progress: Callable[[str], None],
    leave_out: Callable[[str, InputError], None],
) -> dict[str, Any]:  # fmt: skip
    """Return what each engine answers, one after another. One that fails is taken out."""
    found = {}
    for name, engine in [*engines.items()]:
        try:
            found[name] = ask(engine)
        except InputError as error:
            leave_out(name, error)
            del engines[name]
        progress(name)
    return found


def timing(
    name: str, made: list[Round], limits: Sequence[dict[str, float] | None], warm: Round,
    prompt: int, decode: int,
) -> Timing:  # fmt: skip
    return Timing(
        name=name,
        prefill=spread([prompt / one.prefill_s for one in made]),
        decode=spread([decode / one.decode_s for one in made]),
        first_token_s=median(one.prefill_s for one in made),
        tokens=made[-1].tokens,
        peak_bytes=warm.peak_bytes,
        limits=best([one for one in limits if one is not None]),
    )


def best(found: Sequence[dict[str, float]]) -> dict[str, float] | None:
    """Return the largest of each figure, None if there is none."""
    if not found:
        return None
    return {key: max(one[key] for one in found) for key in found[0]}


def spread(rates: list[float]) -> Spread:
    return Spread(median(rates), min(rates), max(rates))


def prompt_of(length: int, vocabulary: int) -> list[int]:
    """Return a prompt of random ids; the same one for the same length and vocabulary."""
    return np.random.default_rng(length).integers(0, vocabulary, length).tolist()


def compared(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """Return timings as plain data, with each engine's rate over that of the first."""
    base = timings[0]
    return [
        {
            "name": one.name,
            "prefill_tokens_per_second": vars(one.prefill),
            "decode_tokens_per_second": vars(one.decode),
            "first_token_s": one.first_token_s,
            "prefill_ratio": one.prefill.median / base.prefill.median,
            "decode_ratio": one.decode.median / base.decode.median,
            "same_tokens": one.tokens == base.tokens,
            "peak_bytes": one.peak_bytes,
            "limits": None if one.limits is None else shares(one, one.limits),
        }
        for one in timings
    ]


def shares(one: Timing, limits: dict[str, float]) -> dict[str, float]:
    """Return limits in tokens a second, what they come from, and how near an engine comes."""
    return {
        "bytes_per_second": limits["bytes_per_second"],
        "bytes_per_token": limits["bytes_per_token"],
        "decode_tokens_per_second": limits["decode"],
        "decode_share": one.decode.median / limits["decode"],
        "operations_per_second": limits["operations_per_second"],
        "operations": limits["operations"],
        "prefill_tokens_per_second": limits["prefill"],
        "prefill_share": one.prefill.median / limits["prefill"],
    }
