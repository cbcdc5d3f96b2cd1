"""One round of one engine by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ENOUGH = 0.05  # seconds in which something short is done again and again


@dataclass(frozen=True)
class Round:
    """Seconds of a prompt and of the steps after it. `tokens` are what was made, to see that all
    engines did the same work; `peak_bytes` is the most memory so far, 0 if nobody looked."""

    prefill_s: float
    decode_s: float
    tokens: list[int]
    peak_bytes: int = 0


def timed(engine: Any, prompt: list[int], decode: int) -> Round:
    """Return what a prefill and `decode` greedy steps after it take."""
    began = time.perf_counter()
    tokens = [engine.prefill(prompt)]
    first = time.perf_counter()
    tokens.extend(engine.decode(tokens[0], decode))
    return Round(first - began, time.perf_counter() - first, tokens)


def quickest(call: Callable[[], object]) -> float:
    """Return the seconds of the quickest of several calls, of two at least: the first warms up."""
    took: list[float] = []
    while len(took) < 2 or sum(took) < ENOUGH:
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return min(took)
