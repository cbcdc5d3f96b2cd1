"""Which bugs may stand for another one. By hand, in the MLP of a layer."""

import pytest

from lockstep.parity.explaining.searching.seen import follow
from tests.parity.explaining.ports import graph_of

GRAPH = graph_of("models/untied_float32")


def calls(*taps: str) -> list[int]:
    """Return the calls of both layers that make such taps."""
    return [GRAPH.taps[f"model.layers.{layer}.mlp.{tap}"] for tap in taps for layer in (0, 1)]


@pytest.mark.parametrize(
    ("some", "others", "found"),
    [
        (["act_fn"], ["gate_proj"], True),  # what is activated
        (["gate_proj"], ["act_fn"], True),
        (["down_proj"], ["gate_proj"], False),  # two calls lie between
        (["gate_proj"], ["up_proj"], False),  # side by side
        (["act_fn", "up_proj"], ["gate_proj"], False),  # of more, each would have to
    ],
)
def test_calls_follow_each_other_where_one_reads_what_the_other_makes(some, others, found):
    assert follow(calls(*some), calls(*others), GRAPH) is found
