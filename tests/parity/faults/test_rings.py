"""Buffers of which a step sees all slots, of any size. By loop."""

import numpy as np
import pytest

from lockstep.parity.faults.rings import of_size, slots_of_buffer
from tests.parity.explaining.ports import ids
from tests.parity.explaining.steps.test_steps import explained
from tests.parity.faults.hand_made import variant, wrong
from tests.parity.faults.test_kv_cache import LENGTH, PROMPT, attended, attending
from tests.sampled import sampled

EMPTY = -1


def in_buffer(slots):
    """Return what a token sees that sees all slots."""
    return lambda token: [*range(token + 1), *[EMPTY] * max(slots - token - 1, 0)]


@pytest.mark.parametrize("slots", [8, LENGTH, 37])
def test_a_step_sees_all_slots_of_a_buffer(slots):
    got = wrong(attending(window=None), of_size(slots))
    np.testing.assert_allclose(got, attended(in_buffer(slots), window=None), atol=1e-12)


def test_a_buffer_as_long_as_the_text():
    name = "read to its end, a buffer of the text's length"
    got = wrong(attending(window=None), variant("kv-chunk-cache-trims-buffer", name))
    np.testing.assert_allclose(got, attended(in_buffer(LENGTH), window=None), atol=1e-12)


def test_what_has_a_window_or_no_steps_has_no_such_buffer():
    for graph in (attending(), attending(window=None, steps=())):
        assert slots_of_buffer().right(graph.calls[6], graph) is None


def test_the_right_number_is_that_of_the_tokens():
    """By hand: it changes nothing, where a buffer that is as long would."""
    graph, number = attending(window=None), slots_of_buffer()
    assert number.right(graph.calls[6], graph) == LENGTH > PROMPT
    assert number.becomes(LENGTH)(graph.calls[6], graph) is None
    assert number.said(48.0, LENGTH) == "read to its end, a buffer of 48 slots for 10"


@sampled(1)
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_how_many_slots_it_has_is_found_out(level):
    found = explained("models/untied_float32", (14, 1, 1, 1), [of_size(40)], level=level)
    assert ids(found) == {"kv-chunk-cache-trims-buffer"} and not found.unexplained
    assert found.faults[0].variant == "read to its end, a buffer of 40 slots for 17"
