"""Experts that are not run for all who chose them. By hand: three experts of one number each."""

import math

import numpy as np
import pytest

from lockstep.parity.faults.dropped_tokens import capacity, first_come
from lockstep.parity.graph import Value
from tests.parity.explaining.ports import explained, ids, port
from tests.parity.faults.hand_made import call, graph_of, variant, wrong
from tests.parity.faults.test_expert_inputs import numbered, silu
from tests.sampled import sampled

SAID = [silu(1 + e) * (2 + e) * (10 + e) for e in range(3)]  # what each expert says of 1
ROUTING = np.array([[[0.5, 0.0, 0.5], [0.25, 0.75, 0.0], [1.0, 0.0, 0.0]]])


def three_tokens(steps=()):
    return graph_of(
        call(0, "multiply", ROUTING, np.ones_like(ROUTING)),
        call(1, "experts", np.ones((1, 3, 1)), Value(0), *numbered(1, 2, 10), per_token=2),
        steps=steps,
    )


def test_the_last_expert_is_never_run():
    found = wrong(three_tokens(), variant("moe-expert-never-run", "the last of all"))
    expected = [0.5 * SAID[0], 0.25 * SAID[0] + 0.75 * SAID[1], SAID[0]]
    np.testing.assert_allclose(found[0, :, 0], expected, rtol=1e-12)


def test_an_expert_has_room_for_two_tokens():
    found = wrong(three_tokens(), first_come(2))
    expected = [0.5 * (SAID[0] + SAID[2]), 0.25 * SAID[0] + 0.75 * SAID[1], 0]
    np.testing.assert_allclose(found[0, :, 0], expected, rtol=1e-12)


def test_capacities_are_asked_for_in_one_pass_alone():
    """By hand: an even share is 3 * 2 / 3 tokens, and of 4 none is lost."""
    number, graph = capacity(), three_tokens()
    assert number.right(graph.calls[1], graph) == math.inf
    assert number.among is not None and [*number.among(graph.calls[1], graph)] == [2]
    assert number.becomes(math.inf)(graph.calls[1], graph) is None
    later = three_tokens(steps=(2,))
    assert number.right(later.calls[1], later) is None
    assert number.becomes(2)(later.calls[1], later) is None


@sampled(1)
@pytest.mark.parametrize(("name", "level"), [
    ("qwen3_moe/separate", "modules"), ("qwen3_moe/separate", "layers"),
    ("gemma4/sparse", "modules"),
])  # fmt: skip
def test_how_many_tokens_it_has_room_for_is_found_out(name, level):
    found = explained(name, port(name, [first_come(8)], level=level))
    assert ids(found) == {"moe-capacity-limited"} and not found.unexplained
    assert found.faults[0].variant == "8 tokens an expert for all"


def test_an_expert_that_is_never_run_is_named():
    name = "qwen3_moe/separate"
    assert ids(explained(name, port(name, ["moe-expert-never-run"]))) == {"moe-expert-never-run"}
