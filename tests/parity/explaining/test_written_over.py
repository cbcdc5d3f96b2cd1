"""A port that adds to its stream in place, and keeps no copies: nothing is named by it. By law."""

import numpy as np
import pytest

from tests.parity.explaining.ports import explained, ids, port

PLAIN, GPT2 = "models/tied_bfloat16", "gpt2/original"
STREAM = {
    PLAIN: ("model.embed_tokens", "model.layers.{}"),
    GPT2: ("transformer.drop", "transformer.h.{}"),
}


def in_place(name, bugs, **how):
    """Return the taps of a port, those of its stream all as the last layer left it."""
    taps = port(name, bugs, **how)
    start, layer = STREAM[name]
    layers = [layer.format(number) for number in range(9) if layer.format(number) in taps]
    over = [one for one in (start, *layers[:-1]) if one in taps]
    return taps | {one: taps[layers[-1]] for one in over}, set(over)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "level"), [(PLAIN, "modules"), (PLAIN, "layers"), (GPT2, "modules")]
)
def test_a_buffer_that_was_written_over_is_no_bug(name, level, dtype):
    taps, over = in_place(name, [], level=level, dtype=dtype)
    doubts = []
    found = explained(name, taps, doubt=doubts.append)
    assert (found.verdict, found.faults, doubts) == ("unknown", [], [])
    assert {one.tap for one in found.unexplained} == over
    assert len([line for line in found.conventions if "written over" in line]) == 1


def test_bugs_beside_it_are_named():
    taps, over = in_place(PLAIN, ["rope-sign-flipped"])
    found = explained(PLAIN, taps)
    assert ids(found) == {"rope-sign-flipped"}
    assert {one.tap for one in found.unexplained} == over


def test_layers_that_add_nothing_are_a_bug():
    """By law: then all hand out the embedding, which is what should go into the first one."""
    taps = port(PLAIN, ["branch-not-added"])
    layers = [value for tap, value in taps.items() if tap in ("model.layers.0", "model.layers.1")]
    assert np.array_equal(*layers) and np.array_equal(layers[0], taps["model.embed_tokens"])
    found = explained(PLAIN, taps)
    assert ids(found) == {"branch-not-added"}
    assert not any("written over" in line for line in found.conventions)
