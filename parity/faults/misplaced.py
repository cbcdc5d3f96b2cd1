"""Keys alone, or values alone, in other slots of the cache than where they are looked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.slots import EMPTY
from lockstep.parity.graph import Call, Graph

# The token in each slot, of the passes (0 is the prompt) of all tokens that were written so far.
Slots = Callable[[np.ndarray], np.ndarray]


def not_stored(passes: np.ndarray) -> np.ndarray:
    return np.where(passes > 0, EMPTY, np.arange(len(passes)))


def own_alone(passes: np.ndarray) -> np.ndarray:
    """See those of the step itself, beside the prompt's."""
    return np.where((passes > 0) & (passes < passes[-1]), EMPTY, np.arange(len(passes)))


def in_front(passes: np.ndarray) -> np.ndarray:
    """Put those of each step before all that was there."""
    return np.argsort(-passes, kind="stable")


def too_late(passes: np.ndarray) -> np.ndarray:
    """Leave the slot behind the prompt empty."""
    prompt, tokens = np.count_nonzero(passes == 0), np.arange(len(passes))
    return np.where(tokens == prompt, EMPTY, np.where(tokens > prompt, tokens - 1, tokens))


def too_early(passes: np.ndarray) -> np.ndarray:
    """Begin on the prompt's last slot."""
    prompt, tokens = np.count_nonzero(passes == 0), np.arange(len(passes))
    return np.where(tokens == tokens[-1], EMPTY, np.where(tokens >= prompt - 1, tokens + 1, tokens))


def over_another(passes: np.ndarray) -> np.ndarray:
    """Write those of each step to the slots behind the prompt, over those of earlier steps."""
    prompt, slots = np.count_nonzero(passes == 0), np.arange(len(passes))
    slots[prompt:] = EMPTY
    for step in range(1, passes[-1] + 1):
        tokens = np.flatnonzero(passes == step)
        slots[prompt : prompt + len(tokens)] = tokens
    return slots


SLOTS: dict[str, Slots] = {
    "of steps never stored": not_stored,
    "of earlier steps never stored": own_alone,
    "of steps in front of the others": in_front,
    "of steps a slot too late": too_late,
    "of steps a slot too early": too_early,
    "of steps over those of earlier ones": over_another,
}


@cache
def found_in(slots: Slots, steps: tuple[int, ...], size: int) -> dict[int, np.ndarray]:
    """Return what the slots hold for each token of a step, if that is not what they should."""
    passes = np.searchsorted(steps, np.arange(size), side="right")
    ends = np.searchsorted(passes, passes, side="right")
    held = {token: slots(passes[: ends[token]]) for token in range(steps[0], size)}
    wrong = any((one != np.arange(len(one))).any() for one in held.values())
    return held if wrong else {}


def misplaced_keys(slots: Slots) -> Rewrite:
    @rewrite("attention_scores")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        held = found_in(slots, graph.steps, graph.shapes[call.number][-1]) if graph.steps else {}
        return call.followed(scores_of(held)) if held else None

    return rewritten


def scores_of(held: dict[int, np.ndarray]) -> Callable[..., np.ndarray]:
    """Return the change that gives each slot the score of the key that it holds, 0 if of none."""

    def change(ops: Any, scores: np.ndarray) -> np.ndarray:
        out = scores.copy()
        for token, tokens in within(held, scores):
            found = np.where(tokens == EMPTY, 0, scores[..., token, tokens])
            out[..., token, : len(tokens)] = found
        return out

    return change


def misplaced_values(slots: Slots) -> Rewrite:
    @rewrite("attention_context")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        held = found_in(slots, graph.steps, graph.input_shape(call, 0)[-1]) if graph.steps else {}
        return call.replaced(averaged(held)) if held else None

    return rewritten


def averaged(held: dict[int, np.ndarray]) -> Callable[..., np.ndarray]:
    """Return the average in which each value has the share of the slot that it lies in."""

    def wrong(ops: Any, probs: np.ndarray, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        seen = np.broadcast_to(mask, (*mask.shape[:-2], *probs.shape[-2:])).copy()
        shares = probs.copy()
        for token, tokens in within(held, probs):
            for rows, right in ((shares, probs), (seen, mask)):
                rows[..., token, : len(tokens)] = 0
                full = np.flatnonzero(tokens != EMPTY)
                rows[..., token, tokens[full]] = right[..., token, full]
        return ops.attention_context(shares, values, seen)

    return wrong


def within(held: dict[int, np.ndarray], rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return the tokens that are among the first so many, with what they find of these."""
    size = rows.shape[-1]
    some = (one for one in held.items() if one[0] < rows.shape[-2])
    return [(token, np.where(found < size, found, EMPTY)[:size]) for token, found in some]
