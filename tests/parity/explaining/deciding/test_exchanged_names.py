"""A right port that dumps gate and up under each other's names. By law."""

import pytest

from tests.parity.explaining.ports import explained, ids, port

NAME = "models/untied_float32"
GATE, UP = "mlp.gate_proj", "mlp.up_proj"


def renamed(taps, layers):
    """Exchange the names in some layers."""
    other = {
        f"model.layers.{layer}.{one}": f"model.layers.{layer}.{two}"
        for layer in layers
        for one, two in ((GATE, UP), (UP, GATE))
    }
    return {other.get(tap, tap): value for tap, value in taps.items()}


@pytest.mark.parametrize(("layers", "said"), [([0], "layer 0"), ([0, 1], "layers 0, 1")])
def test_it_is_a_note(layers, said):
    found = explained(NAME, renamed(port(NAME), layers))
    assert (found.verdict, found.faults) == ("clean", [])
    (line,) = (one for one in found.conventions if "each other's names" in one)
    assert f"gate_proj and up_proj of {said} are" in line


def test_bugs_beside_it_are_named():
    found = explained(NAME, renamed(port(NAME, ["attn-scale-twice"]), [0, 1]))
    assert ids(found) == {"attn-scale-twice"}


@pytest.mark.parametrize("where", ["in the product", "in the weights"])
def test_either_alone_is_a_bug(where):
    found = explained(NAME, port(NAME, [f"swiglu-gate-up-swapped[{where}]"]))
    assert ids(found) == {"swiglu-gate-up-swapped"}
