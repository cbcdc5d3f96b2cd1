"""Which tokens a step finds in a broken cache: simulated slot by slot, on the tokens' numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.passes import begins
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph

SCORES, MASK = 0, 1
EMPTY = -1  # a slot that nothing was written to: zeros, which are seen all the same
STEP = 256  # slots that a cache grows by, in MLX


@dataclass(frozen=True)
class Asked:
    """One token of a step. All are numbers of tokens: its own, the first of its step, the prompt's
    length, the first of the next step. `window` is None in layers that see everything. `edges` are
    the first tokens of all passes, and their end, if these are known.
    """

    token: int
    begins: int
    prompt: int
    window: int | None
    ends: int
    edges: tuple[int, ...] = ()

    @property
    def oldest(self) -> int:
        """The oldest token that it should see."""
        return 0 if self.window is None else max(self.token - self.window + 1, 0)


Held = Callable[[Asked], Sequence[int] | None]  # the tokens that it sees; None: as it should be
HELD: dict[Rewrite, Held] = {}  # what is behind each rewrite that `remembering` made


def seen_by(asked: Asked) -> range:
    """Return what a token should see."""
    return range(asked.oldest, asked.token + 1)


def own(asked: Asked) -> list[int]:
    """Return the tokens of its own step that a token should see."""
    return [*range(max(asked.begins, asked.oldest), asked.token + 1)]


def in_chunks(held: Held) -> Held:
    """See so in steps of several tokens; what is fed alone sees what it should."""
    return lambda asked: held(asked) if asked.ends - asked.begins > 1 else None


def wrapped(
    keep: Callable[[int, int], Sequence[int]], place: Callable[[int, int, int], int]
) -> Held:
    """Simulate a ring of W slots: what it keeps of a prompt, and where a later token is put.

    `keep(prompt, window)` are the tokens in its slots, `place(token, prompt, window)` is a slot.
    """

    def held(asked: Asked) -> Sequence[int] | None:
        if asked.window is None:
            return None
        slots = list(keep(asked.prompt, asked.window))
        for token in range(asked.prompt, asked.token + 1):
            if len(slots) < asked.window:
                slots.append(token)
            else:
                slots[place(token, asked.prompt, asked.window)] = token
        return slots

    return held


@dataclass(frozen=True)
class Counted:
    """How often each token of a step (S, T) sees each token, and how many empty slots (S,)."""

    times: np.ndarray
    empty: np.ndarray


def counted(held: Held, graph: Graph, window: int | None, size: int) -> Counted | None:
    """Ask for every token of the steps; None if all see what they should."""
    prompt = graph.steps[0]
    starts, edges = begins(graph, size), np.array((*graph.steps, size))
    every = (0, *map(int, edges))
    ends = edges[np.searchsorted(edges, np.arange(size), side="right")]
    times, empty, wrong = np.zeros((size - prompt, size), int), np.zeros(size - prompt, int), False
    for row in range(size - prompt):
        token = prompt + row
        asked = Asked(token, int(starts[token]), prompt, window, int(ends[token]), every)
        found = held(asked)
        right = seen_by(asked)
        tokens = list(right if found is None else found)
        wrong = wrong or sorted(tokens) != list(right)
        np.add.at(times[row], [token for token in tokens if token != EMPTY], 1)
        empty[row] = tokens.count(EMPTY)
    return Counted(times, empty) if wrong else None


def remembering(held: Held) -> Rewrite:
    """Let the tokens of steps see what a broken cache holds.

    A key that is there twice counts twice; a slot of zeros has a score, 0, and a value, 0.
    """

    @rewrite("softmax")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        if not graph.steps:
            return None
        window = graph.source(call, MASK).options["window"]
        counts = counted(held, graph, window, graph.shapes[call.number][-1])
        return None if counts is None else call.replaced(weighed(counts, graph.steps[0]))

    HELD[rewritten] = held
    return rewritten


def weighed(counts: Counted, prompt: int) -> Callable[..., Any]:
    """Return a softmax with a column more: all empty slots together."""

    def wrong(ops: Any, scores: Any, mask: Any, *, masked_row: str) -> Any:
        size = scores.shape[-1]
        if scores.shape[-2] != size:  # within another cache's softmax: what that holds stands
            return ops.softmax(scores, mask, masked_row=masked_row)
        rows = slice(max(size - prompt, 0))
        times = np.concatenate([counts.times[rows, :size], counts.empty[rows, None]], axis=-1)
        wide = np.concatenate([scores, np.zeros_like(scores[..., :1])], axis=-1)
        seen = np.concatenate([mask, np.zeros_like(mask[..., :1])], axis=-1)
        seen = np.broadcast_to(seen, wide.shape).copy()
        somewhere = np.broadcast_to(mask, scores.shape).any(axis=-2, keepdims=True)
        seen[..., prompt:, :] = times > 0
        seen[..., prompt:, :size] &= somewhere  # not what only fills up a row of a batch
        wide[..., prompt:, :] += np.log(np.maximum(times, 1)).astype(scores.dtype)
        return ops.softmax(wide, seen, masked_row=masked_row)[..., :size]

    return wrong


@rewrite("softmax")
def of_same_prompt(call: Call, graph: Graph) -> Call | None:
    """See the prompt once more, as an earlier run of it left it behind."""
    size = graph.shapes[call.number][-1]
    if graph.pads is not None or graph.source(call, MASK).options["window"] is not None:
        return None
    return call.replaced(seen_twice(graph.steps[0] if graph.steps else size))


def seen_twice(prompt: int) -> Callable[..., Any]:
    """Return a softmax in which each token of the prompt counts once more than it is seen."""

    def wrong(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
        size = scores.shape[-1]
        token, key = np.arange(scores.shape[-2])[:, None], np.arange(size)
        times = (key <= token).astype(int) + (key < prompt)
        return weighed(Counted(times, np.zeros(size, int)), 0)(ops, scores, mask, **options)

    return wrong


def shortened(asked: Asked, by: int) -> Asked:
    """Ask with another window."""
    return asked if asked.window is None else replace(asked, window=max(asked.window - by, 1))
