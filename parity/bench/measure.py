"""Time engines in turn, so that what slows the machine for a while slows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np

from lockstep.parity.bench.timing import Round


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
    """One engine's rounds with one prompt. `limits` are medians; None where there are none."""

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
) -> list[list[Timing]]:
    """Run every engine on every prompt to warm up, then each prompt `rounds` times, in turn.

    `decode` tokens are generated greedily after each prefill. Memory is looked at while engines
    warm up, from the shortest prompt on: later there is what measured the limits beside them.
    """
    warm = []
    for prompt in prompts:
        warm.append({name: engine.run(prompt, decode) for name, engine in told(engines, progress)})
    found = []
    for prompt, first in zip(prompts, warm, strict=True):
        made, limits = rounds_of(engines, prompt, decode, rounds, progress)
        found.append([
            timing(name, made[name], limits[name], first[name], len(prompt), decode)
            for name in engines
        ])  # fmt: skip
    return found


def told(engines: Mapping[str, Timed], progress: Callable[[str], None]) -> Any:
    """Yield engines by name, and tell of each when it is done."""
    for name, engine in engines.items():
        yield name, engine
        progress(name)


Limits = list[dict[str, float] | None]


def rounds_of(
    engines: Mapping[str, Timed], prompt: list[int], decode: int, rounds: int,
    progress: Callable[[str], None],
) -> tuple[dict[str, list[Round]], dict[str, Limits]]:  # fmt: skip
    """Return each engine's rounds, and the limits that were measured after each."""
    made: dict[str, list[Round]] = {name: [] for name in engines}
    limits: dict[str, Limits] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in told(engines, progress):
            made[name].append(engine.run(prompt, decode))
            limits[name].append(engine.limits(len(prompt)))
    return made, limits


def timing(
    name: str, made: list[Round], limits: Limits, warm: Round, prompt: int, decode: int
) -> Timing:
    return Timing(
        name=name,
        prefill=spread([prompt / one.prefill_s for one in made]),
        decode=spread([decode / one.decode_s for one in made]),
        first_token_s=median(one.prefill_s for one in made),
        tokens=made[-1].tokens,
        peak_bytes=warm.peak_bytes,
        limits=medians([one for one in limits if one is not None]),
    )


def medians(found: Sequence[dict[str, float]]) -> dict[str, float] | None:
    """Return the median of each figure, None if there is none."""
    if not found:
        return None
    return {key: median(one[key] for one in found) for key in found[0]}


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
