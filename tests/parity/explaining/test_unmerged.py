"""A port may dump what attention gives by heads, before it merges them: the merge is judged."""

import numpy as np
import pytest

from tests.parity.explaining.ports import explained, graph_of, port

NAME = "models/untied_float32"
MERGED = "head-merge-without-transpose"


def by_heads(bugs, *, batch):
    """Return a port's dump with (B, H, L, D) for its context, or (H, L, D), by the law of the
    merge: heads and tokens are exchanged before it, or as a bug has it, they are not."""
    taps, graph = port(NAME, bugs, level="taps"), graph_of(NAME)
    for tap, value in taps.items():
        if tap.endswith(".context"):
            [source] = graph.sources(graph.taps[tap])
            heads = graph.shapes[source]
            _, count, length, width = heads
            swapped = np.swapaxes(value.reshape(1, length, count, width), 1, 2)
            parts = value.reshape(heads) if bugs else swapped
            taps[tap] = parts if batch else parts[0]
    return taps


@pytest.mark.parametrize("batch", [True, False])
def test_the_merge_behind_heads_is_judged(batch):
    """By the law of the merge: the port's heads are right, and their order behind it is not."""
    found = explained(NAME, by_heads([MERGED], batch=batch))
    assert [one.id for one in found.faults] == [MERGED]
    assert explained(NAME, by_heads([], batch=batch)).verdict == "clean"
