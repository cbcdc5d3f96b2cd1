"""Time engines in turn, so that what slows the machine for a while slows them all."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from lockstep.parity.bench.engines import Engine


@dataclass(frozen=True)
class Spread:
    """Tokens a second over the rounds: the median, the slowest and the fastest round."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """One engine's rounds. `tokens` are what it generated, to see that all did the same work."""

    name: str
    prefill: Spread
    decode: Spread
    first_token_s: float
    tokens: list[int]


def measure(
    engines: dict[str, Engine],
    prompt: list[int],
    *,
    decode: int,
    rounds: int,
    progress: Callable[[str], None],
) -> list[Timing]:
    """Run every engine once to warm up, then `rounds` times in turn; return medians with spread.

    `decode` tokens are generated greedily after each prefill.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    made: dict[str, list[int]] = {}
    for turn in range(rounds + 1):
        for name, engine in engines.items():
            prefill, rest, made[name] = timed(engine, prompt, decode)
            if turn:  # the first is the warm-up
                seconds[name].append((prefill, rest))
            progress(name)
    return [timing(name, seconds[name], len(prompt), decode, made[name]) for name in engines]


def timed(engine: Engine, prompt: list[int], decode: int) -> tuple[float, float, list[int]]:
    """Return the seconds of a prefill and of `decode` steps after it, and the tokens made."""
    began = time.perf_counter()
    tokens = [engine.prefill(prompt)]
    first = time.perf_counter()
    for _ in range(decode):
        tokens.append(engine.step(tokens[-1]))
    return first - began, time.perf_counter() - first, tokens


def timing(
    name: str, seconds: list[tuple[float, float]], prompt: int, decode: int, tokens: list[int]
) -> Timing:
    prefills, rests = zip(*seconds, strict=True)
    return Timing(
        name=name,
        prefill=spread([prompt / one for one in prefills]),
        decode=spread([decode / one for one in rests]),
        first_token_s=median(prefills),
        tokens=tokens,
    )


def spread(rates: list[float]) -> Spread:
    return Spread(median(rates), min(rates), max(rates))


def prompt_of(length: int, vocabulary: int) -> list[int]:
    """Return a prompt of random ids; the same one for the same length and vocabulary."""
    return np.random.default_rng(length).integers(0, vocabulary, length).tolist()


def document(timings: list[Timing], **about: Any) -> dict[str, Any]:
    """Return timings as plain data, with each engine's rate over that of the first."""
    base = timings[0]
    return about | {
        "engines": [
            {
                "name": one.name,
                "prefill_tokens_per_second": vars(one.prefill),
                "decode_tokens_per_second": vars(one.decode),
                "first_token_s": one.first_token_s,
                "prefill_ratio": one.prefill.median / base.prefill.median,
                "decode_ratio": one.decode.median / base.decode.median,
                "same_tokens": one.tokens == base.tokens,
            }
            for one in timings
        ]
    }
