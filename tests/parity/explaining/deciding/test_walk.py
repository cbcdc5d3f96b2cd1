"""Bugs that the gate lets pass, but all numbers of a dump together do not. By law."""

from collections import namedtuple
from types import SimpleNamespace

import pytest

from lockstep.parity.explaining.deciding import walk
from lockstep.parity.explaining.deciding.duel import Way
from lockstep.parity.explaining.deciding.votes import Votes
from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

NAME = "gpt2/original"


@long
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_what_is_within_the_noise_is_named(level):
    found = explained(NAME, port(NAME, ["gelu-quick"], dtype="bfloat16", level=level))
    assert ids(found) == {"gelu-quick"} and found.unexplained == []


@long
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_right_port_is_led_nowhere(level):
    assert explained(NAME, port(NAME, dtype="bfloat16", level=level)).verdict == "clean"


@pytest.mark.parametrize(
    ("size", "astray", "led"),
    [(2000.0, 0.4, True), (2000.0, 0.6, False), (500.0, 0.4, False), (500.0, 0.2, True)],
)
def test_a_legal_rounding_on_the_way_leaves_a_far_end_certain(monkeypatch, size, astray, led):
    """By hand: the port is at the end of a way that a legal rounding goes a part of."""
    monkeypatch.setattr(walk, "at_end", lambda *given: (Way(size, size, 100), [None]))
    monkeypatch.setattr(walk, "step", lambda *given: Way(astray * size, size, 100))
    monkeypatch.setattr(walk, "bits_of", lambda *given: Votes(fault=100, right=1))
    ballot = SimpleNamespace(trial=SimpleNamespace(ways=lambda rows: [None]))
    assert (walk.confirmed(ballot, None) is not None) is led  # pyright: ignore[reportArgumentType]


def test_a_longer_way_that_ends_farther_from_the_port_comes_second(monkeypatch):
    """By hand: both are about as long, and the port is at the end of the shorter one."""
    ways = {"past": Way(3868.0, 4276.0, 4400), "there": Way(3816.0, 3835.0, 4400)}
    bugs = [namedtuple("Bug", "id")(name) for name in ways]
    monkeypatch.setattr(walk, "at_end", lambda ballot, one, *_: (ways[one.id], [None]))
    monkeypatch.setattr(walk, "bits_of", lambda *given: Votes(fault=100, right=1))
    trial = SimpleNamespace(ways=lambda rows: [])
    ballot = SimpleNamespace(trial=trial, take=lambda bug, piece: None)
    found = walk.led_to(ballot, bugs)  # pyright: ignore[reportArgumentType]
    assert [one.id for one, _, _ in found] == ["there", "past"]


@long
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_factor_of_the_embedding_that_is_not_rounded_is_named(dtype):
    name, bug = "gemma4/sparse", "embed-scale-not-rounded"  # the root of 32 is no number of these
    taps = port(name, [f"{bug}[not rounded]"], dtype=dtype)
    found = explained(name, taps)
    assert ids(found) == {bug} and found.unexplained == []
    assert found.faults[0].variant == "not rounded"
