"""A layer's number, and a cap, in the wrong place. By hand."""

import math

import numpy as np
import pytest

from lockstep.parity.graph import Value
from tests.parity.faults.hand_made import call, graph_of, one_call, variant, wrong

STREAM, SAID, THOUGHT = 3.0, 1.0, 5.0  # what goes in, what attention adds, and what the MLP adds
NUMBER = 0.5
EXPECTED = {
    "": 9.0,
    "on the branch alone": 3 + 1 + 0.5 * 5,
    "on the stream alone": 0.5 * (3 + 1) + 5,
    "on what goes into the layer": 0.5 * 3 + 1 + 5,
    "on what attention says": 3 + 0.5 * 1 + 5,
    "twice": 0.25 * 9,
    "1 more than it is": 1.5 * 9,
}


def layer():
    """Both sums of a layer, whose attention and MLP say what they say."""
    stream, said, thought = (np.full((1, 1, 1), x) for x in (STREAM, SAID, THOUGHT))
    return graph_of(
        call(0, "scale", stream, by=1.0),
        call(1, "add", Value(0), said, place="residual", layer=0),
        call(2, "add", Value(1), thought, layer=0),
        call(3, "gain", Value(2), np.array([NUMBER]), layer=0),
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_the_number_of_a_layer_multiplies_something_else(name):
    found = wrong(layer(), variant("layer-scalar-missing", name))
    np.testing.assert_array_equal(found, [[[EXPECTED[name]]]])


def head():
    """A last norm of two numbers, a head of one row, and a cap of 2."""
    return graph_of(
        call(0, "scale", np.array([[[3.0, 4.0]]]), by=1.0),
        call(1, "rms_norm", Value(0), np.ones(2), eps=0.0, place="model.norm"),
        call(2, "linear", Value(1), np.array([[1.0, 2.0]]), None, place="lm_head"),
        call(3, "softcap", Value(2), cap=2.0, place="logits"),
    )


def capped(x):
    return 2 * math.tanh(x / 2)


def normed(a, b):
    root = math.sqrt((a * a + b * b) / 2)
    return a / root, b / root


def test_what_goes_into_the_head_is_capped():
    a, b = map(capped, normed(3.0, 4.0))
    found = wrong(head(), variant("final-softcap-missing", "on what goes into the head"))
    np.testing.assert_allclose(found, [[[a + 2 * b]]], rtol=1e-12)


def test_what_goes_into_the_last_norm_is_capped():
    a, b = normed(capped(3.0), capped(4.0))
    found = wrong(head(), variant("final-softcap-missing", "on what goes into the last norm"))
    np.testing.assert_allclose(found, [[[a + 2 * b]]], rtol=1e-12)


def test_logits_are_cut_off_at_the_cap():
    """They are 3.1, and the cap is 2."""
    found = wrong(head(), variant("final-softcap-missing", "cut off at c and -c"))
    np.testing.assert_array_equal(found, [[[2.0]]])


def test_the_head_normalises_once_more():
    """Of two numbers, with gains of 1 and 2."""
    graph = graph_of(
        call(0, "scale", np.array([[[3.0, 4.0]]]), by=1.0),
        call(1, "rms_norm", Value(0), np.array([1.0, 2.0]), eps=0.0, place="model.norm"),
        call(2, "linear", Value(1), np.array([[1.0, 2.0]]), None, place="lm_head"),
    )
    a, b = normed(3.0, 4.0)
    a, b = normed(a, 2 * b)
    found = wrong(graph, variant("norm-applied-twice", "by the head, but dumped before"))
    np.testing.assert_allclose(found, [[[a + 4 * b]]], rtol=1e-12)


def test_values_are_normalised_over_all_heads():
    heads = np.array([[[[3.0, 0.0], [0.0, 1.0]]]])  # one token, two heads of two numbers
    found = one_call("qk-norm-scope", "values", "unit_norm", heads, eps=0.5,
                     place="self_attn.v_norm")  # fmt: skip
    np.testing.assert_allclose(found, heads / math.sqrt(10 / 4 + 0.5), rtol=1e-12)


def test_without_a_cap_none_is_elsewhere():
    graph = graph_of(call(0, "linear", np.ones((1, 1, 2)), np.ones((1, 2)), None, place="lm_head"))
    assert (
        variant("final-softcap-missing", "on what goes into the head")(graph.calls[0], graph)
        is None
    )
