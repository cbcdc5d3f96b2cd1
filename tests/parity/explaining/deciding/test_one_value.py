"""What two pieces compute, and the dump lacks, is wrong in both. By law."""

import pytest

from lockstep.parity.explaining.deciding import one_value
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import explained, ids, port

NAME = "gpt2/original"
MISSING, PAST = "branch-not-added", "parallel-residual-as-sequential"
BEHIND = "residual-from-before-attention"  # which with PAST is MISSING


def known_but(*unknown):
    return [one for one in catalogue() if one.id not in unknown]


def attention_is_not_added(call):
    return call.place == "residual"


@pytest.fixture(scope="module")
def taps():
    return port(NAME, [MISSING], where=attention_is_not_added)


def test_a_bug_of_the_norm_alone_is_not_named_for_the_streams(taps, monkeypatch):
    """Without attention the norm sees what it would see if attention went past it."""
    found = explained(NAME, taps, known_but(MISSING, BEHIND))
    assert not found.faults
    assert {one.op for one in found.unexplained} == {"layer_norm", "add"}
    monkeypatch.setattr(one_value, "explains", lambda *given: False)
    assert ids(explained(NAME, taps, known_but(MISSING, BEHIND))) == {PAST}


def test_attention_that_is_not_added_is_one_bug_and_not_two(taps):
    """Past the norm and past the layer's end it would be two, which together are the same."""
    assert ids(explained(NAME, taps)) == {MISSING}
    assert ids(explained(NAME, taps, known_but(MISSING))) == {PAST, BEHIND}


def test_it_is_named_beside_what_is_unknown_elsewhere():
    """By law: an activation's end tells nothing of the stream."""
    found = explained(NAME, port(NAME, [PAST, "gelu-quick"]), known_but("gelu-quick"))
    assert ids(found) == {PAST} and found.unexplained


def test_it_is_named_beside_what_is_unknown_at_the_layers_end():
    """By law: a sum that is wrong by itself tells no stream that explains the norm."""
    taps = port(NAME, [PAST])
    end = "transformer.h.1"
    taps[end] = taps[end] * 1.25
    found = explained(NAME, taps)
    assert PAST in ids(found) and end in {one.tap for one in found.unexplained}


def test_it_is_told_through_a_layers_own_number():
    """By law: in Gemma 4 the layer's end is the stream times that, and other sums."""
    name = "gemma4/effective"
    taps = port(name, [MISSING], where=attention_is_not_added)
    found = explained(name, taps, known_but(MISSING, BEHIND))
    assert PAST not in ids(found) and found.unexplained
