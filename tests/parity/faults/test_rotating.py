"""A ring that is written in turn, and what several tokens at once find there. By hand."""

import numpy as np
import pytest

from lockstep.parity.faults.rotating import by_calls, rotating
from lockstep.parity.faults.slots import Asked, remembering
from tests.parity.faults.hand_made import variant, wrong
from tests.parity.faults.test_kv_cache import LENGTH, PROMPT, PROMPTS, attended, attending, moved

PASSES = [(6, 7, 8, 9), (6, 7, 9), (7,), (8, 9), (6,), (2, 3, 7, 8)]


@pytest.mark.parametrize("steps", PASSES)
@pytest.mark.parametrize("window", [2, 4, 5, 20])
def test_a_right_ring_holds_what_should_be_seen(steps, window):
    graph = attending(window, steps)
    assert remembering(rotating())(graph.calls[6], graph) is None


def test_a_chunk_takes_slots_as_they_lie():
    """The slots are 6 3 4 5 when 7 and 8 come, and those but the first are taken for 4 5 6."""
    seen = {6: [3, 4, 5, 6], 7: [3, 4, 5, 7], 8: [4, 5, 7, 8], 9: [5, 7, 8, 9]}
    name = "a chunk takes the slots as they lie for the last tokens"
    found = wrong(attending(steps=(6, 7, 9)), variant("kv-ring-sliced-as-flat", name))
    np.testing.assert_allclose(found, attended(seen.__getitem__), atol=1e-12)


def test_the_first_slots_are_not_written_again():
    """Of 1 to 5, which a ring of five holds behind the prompt, only the last gives way."""
    name = "the first 4 slots are not written again"
    found = wrong(attending(window=5), variant("kv-ring-size-off-by-one", name))
    expected = attended(lambda t: [1, 2, 3, 4, t], window=5)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("token", range(PROMPT, LENGTH))
def test_without_the_passes_each_is_of_one_token(token):
    held, edges = rotating(held=2), (0, *range(PROMPT, LENGTH + 1))
    known = Asked(token, token, PROMPT, 4, token + 1, edges)
    assert held(known) == held(Asked(token, token, PROMPT, 4, token + 1)) != None  # noqa: E711


def test_a_chunk_counts_as_one_token():
    for name in ("a chunk counts as one token", "a chunk counts as one token, in the mask too"):
        found = moved("rope-pos-frozen-on-decode", name, steps=(PROMPT, LENGTH - 1))
        assert found == [*PROMPTS, 6, 7, 8, 7]
        assert moved("rope-pos-frozen-on-decode", name) is None


def test_a_chunk_behind_one_that_counts_as_one_token_sees_less():
    """8 and 9 are taken for 7 and 8, and a ring of four has no more than three before them."""
    seen = {6: [3, 4, 5, 6], 7: [4, 5, 6, 7], 8: [5, 6, 7], 9: [5, 6, 7, 8]}
    found = wrong(attending(steps=(6, 8)), remembering(by_calls))
    np.testing.assert_allclose(found, attended(seen.__getitem__), atol=1e-12)
