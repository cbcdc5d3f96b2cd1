"""What goes into a layer, dumped under the layer's name, is no bug. By law."""

import pytest

from tests.parity.explaining.ports import explained, ids, port

PLAIN, GPT2 = "models/untied_float32", "gpt2/original"
START = {
    PLAIN: ("model.embed_tokens", "model.layers."),
    GPT2: ("transformer.drop", "transformer.h."),
}
SAID = "number i of hidden_states goes into layer i"


def handed_in(name, bugs, *, level, kept=True, dtype="float32"):
    """Return the taps with each layer's input under its name; the embedding's own tap is `kept`."""
    every = port(name, bugs, level="modules", dtype=dtype)
    taps = port(name, bugs, level=level, dtype=dtype)
    start, layer = START[name]
    count = sum(tap.removeprefix(layer).isdigit() for tap in every)
    inputs = [every[start], *(every[f"{layer}{number}"] for number in range(count - 1))]
    taps |= {f"{layer}{number}": value for number, value in enumerate(inputs)}
    return {tap: value for tap, value in taps.items() if kept or tap != start}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("name", START)
def test_a_right_port_is_clean_and_it_is_said(name, level, dtype, kept):
    found = explained(name, handed_in(name, [], level=level, dtype=dtype, kept=kept))
    assert (found.verdict, found.faults) == ("clean", [])
    assert sum(SAID in line for line in found.conventions) == 1


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_bugs_are_named_all_the_same(level):
    found = explained(PLAIN, handed_in(PLAIN, ["attn-scale-twice"], level=level))
    assert ids(found) == {"attn-scale-twice"}
    assert any(SAID in line for line in found.conventions)


def test_a_first_layer_that_does_nothing_is_a_bug():
    def in_first(call):
        return call.layer == 0

    found = explained(PLAIN, port(PLAIN, ["branch-not-added"], where=in_first, level="layers"))
    assert ids(found) == {"layer-left-out"}
    assert not any(SAID in line for line in found.conventions)
