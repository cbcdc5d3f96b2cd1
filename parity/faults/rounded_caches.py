"""Caches in 8 bits whose keys have a scale a channel, and steps that read their own from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.found_again import BY_HEAD, by_head, whole_steps
from lockstep.parity.faults.in_steps import in_steps
from lockstep.parity.faults.passes import KEYS, found_again, numbered
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph

SCORES, AVERAGE = "attention_scores", "attention_context"
Change = Callable[..., Any]


def by_channel(graph: Graph) -> Change:
    """Round to whole steps of 1/127 of the largest number of a channel, among a pass's tokens."""

    def change(ops: Any, x: Any) -> Any:
        passes = numbered(graph, x.shape[2])
        parts = [x[:, :, passes == one] for one in np.unique(passes)]
        return np.concatenate([whole_steps(part, axis=2) for part in parts], axis=2)

    return change


def keys_by_channel(*, own: bool) -> Rewrite:
    """Round keys by channel and values by head; a step may read its `own` so too."""

    @rewrite((SCORES, AVERAGE))
    def rewritten(call: Call, graph: Graph) -> Call | None:
        return rounded(by_channel(graph), own=own)(call, graph)

    return rewritten


def rounded(keys: Change, *, own: bool) -> Rewrite:
    """Round keys as is said and values by head: those of earlier passes, or a step's `own` too."""
    if not own:
        return found_again(keys, by_head, lambda call, graph, which: ())

    @rewrite((SCORES, AVERAGE))
    def all_of_it(call: Call, graph: Graph) -> Call:
        return call.with_changed(KEYS, keys if call.op == SCORES else by_head)

    return in_steps(all_of_it)


BY_CHANNEL = "8 bits, keys with a scale for each channel of a pass, values for each head"
OWN_TOO = ", a step's own too"
IN_8_BITS = {
    BY_CHANNEL: keys_by_channel(own=False),
    BY_CHANNEL + OWN_TOO: keys_by_channel(own=True),
    BY_HEAD + OWN_TOO: rounded(by_head, own=True),
}
