"""Bugs that the gate lets pass, but all numbers of a dump together do not. By law."""

import pytest

from tests.parity.explaining.ports import explained, ids, port

NAME = "gpt2/original"


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_what_is_within_the_noise_is_named(level):
    found = explained(NAME, port(NAME, ["gelu-quick"], dtype="bfloat16", level=level))
    assert ids(found) == {"gelu-quick"} and found.unexplained == []


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_right_port_is_led_nowhere(level):
    assert explained(NAME, port(NAME, dtype="bfloat16", level=level)).verdict == "clean"
