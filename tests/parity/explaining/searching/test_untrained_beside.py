"""Random numbers in a layer whose output alone was dumped, beside bugs of all layers. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.searching import untrained_beside
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

NAME, DROPPED = "models/untied_float32", "strict-false-drops-tensors"
BUGS = ("rope-axis-mixup", "attn-scale-twice")
KNOWN = [one for one in catalogue() if one.id in (DROPPED, *BUGS)]


def fresh(call, graph):
    """Put fresh random numbers in the place of the second layer's last projection."""
    if call.op != "linear" or call.place != "self_attn.o_proj" or call.layer != 1:
        return None

    def drawn(ops, weight):
        rng = np.random.default_rng(7)
        return (0.02 * rng.standard_normal(weight.shape)).astype(np.float32)

    return call.with_changed(1, drawn)


@sampled(1)
@pytest.mark.parametrize("bug", BUGS)
def test_they_are_named_beside_what_another_layer_has(bug):
    found = explained(NAME, port(NAME, [bug, fresh], level="layers", length=40), KNOWN, length=40)
    assert ids(found) == {bug, DROPPED} and not found.unexplained
    (dropped,) = (one for one in found.faults if one.id == DROPPED)
    assert dropped.layers == [1] and "random numbers of deviation 0.02" in (dropped.variant or "")


def test_without_it_the_layer_is_unknown(monkeypatch):
    monkeypatch.setattr(untrained_beside, "samples_beside", lambda *given: [])
    taps = port(NAME, [BUGS[0], fresh], level="layers", length=40)
    found = explained(NAME, taps, KNOWN, length=40)
    assert ids(found) == {BUGS[0]} and [one.tap for one in found.unexplained] == ["model.layers.1"]


@pytest.mark.parametrize(("name", "bug"), [(NAME, BUGS[0]), ("gemma4/dense", "act-silu-vs-gelu")])
def test_a_projection_that_is_another_one_is_none(name, bug):
    """Its numbers are no smaller than the right ones."""

    def turned(call, graph):
        here = call.op == "linear" and call.place == "self_attn.o_proj" and call.layer == 1
        return call.with_changed(1, lambda ops, weight: weight[::-1]) if here else None

    known = [one for one in catalogue() if one.id in (DROPPED, bug)]
    found = explained(name, port(name, [bug, turned], level="layers", length=40), known, length=40)
    assert ids(found) == {bug} and found.unexplained


def test_they_are_named_in_front_of_a_norm():
    """By law: the norm hides nearly all of how large its input was, but for what `eps` adds."""
    name, bug = "gemma4/dense", "act-silu-vs-gelu"
    known = [one for one in catalogue() if one.id in (DROPPED, bug)]
    found = explained(name, port(name, [bug, fresh], level="layers", length=40), known, length=40)
    assert ids(found) == {bug, DROPPED} and not found.unexplained
