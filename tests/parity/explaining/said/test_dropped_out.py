"""A dropout that was left on is known by its numbers, each of which is one of two. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.said.dropped_out import is_by_chance, share_fallen
from tests.parity.explaining.ports import explained, port

NAME, FAULTS = "gpt2/original", ()
BEFORE, ADDED = "transformer.drop", ("residual", "")


def dropping(rate, *places, kept=None):
    """Return a rewrite that drops numbers of what is added at some places, or of the whole sum."""

    def fallen(x, seed):
        some = np.random.default_rng(seed).random(x.shape) >= rate  # the same ones each time
        return (x * some / np.float32(1 - rate if kept is None else kept)).astype(x.dtype)

    def rewrite(call, graph):
        if call.op != "add" or call.place not in places:
            return None
        if call.place == BEFORE:
            return call.replaced(lambda ops, x, y: fallen(ops.add(x, y), call.number))
        return call.replaced(lambda ops, x, y: ops.add(x, fallen(y, call.number)))

    return rewrite


def shapes(bug, dtype="float32", level="modules"):
    found = explained(NAME, port(NAME, [bug], dtype=dtype, level=level), FAULTS)
    assert found.verdict == "unknown"
    return {one.tap: one.shape for one in found.unexplained}


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_numbers_that_fell_of_embeddings_and_of_branches_are_said(dtype, rate):
    found = shapes(dropping(rate, BEFORE, *ADDED), dtype)
    for tap in (BEFORE, "transformer.h.0", "transformer.h.1"):
        assert found[tap].startswith("dropout: ")
        assert found[tap].endswith(f"as of p = {rate:g} in training mode")


def test_of_a_layer_one_branch_may_have_dropped_numbers_alone():
    """By law: attention's would change what the MLP is given, which layers do not show."""
    found = shapes(dropping(0.1, ""), level="layers")
    assert found.keys() == {"transformer.h.0", "transformer.h.1"}
    assert all(said.endswith("as of p = 0.1 in training mode") for said in found.values())


def test_sums_near_nought_are_as_far_off_as_others():
    """By law: of a product of many numbers, in another order. That is more than near nought."""
    found = explained("llama/biased_llama3", port("llama/biased_llama3", [down]), FAULTS)
    assert found.unexplained
    assert all(one.shape.endswith("p = 0.1 in training mode") for one in found.unexplained)


def down(call, graph):
    """Drop numbers of the MLP, whose sums are made in another order."""

    def other(ops, x, weight, bias):
        backwards = ops.linear(x[..., ::-1], weight[:, ::-1], bias)
        some = np.random.default_rng(call.number).random(backwards.shape) >= 0.1
        return (backwards * some / np.float32(0.9)).astype(x.dtype)

    down_proj = call.op == "linear" and call.place == "mlp.down_proj"
    return call.replaced(other) if down_proj else None


@pytest.mark.parametrize("kept", [1.0, 0.7])
def test_numbers_that_fell_and_are_not_made_up_for_are_no_dropout(kept):
    found = shapes(dropping(0.1, BEFORE, *ADDED, kept=kept))
    assert not [one for one in found.values() if one.startswith("dropout")]


def test_a_gain_alone_is_no_dropout():
    """By law: one over 0.9 times the right value, of which no number fell."""
    found = shapes(dropping(0.0, BEFORE, kept=0.9))
    assert found[BEFORE] == "gain: 1.11111 times the right value"


def test_each_branch_of_a_sum_falls_by_itself():
    """By hand: of two numbers of the first branch one fell, of the second none; over a half."""
    one, other = np.array([1.0, 3.0]), np.array([10.0, 20.0])
    port = np.array([0.0 + 20.0, 6.0 + 40.0])
    near = np.full(2, 1e-6)
    assert share_fallen(port, [one, other], 0.5, near) == (0.25, 0.0)
    assert share_fallen(port + 0.5, [one, other], 0.5, near) == (None, 1.0)


@pytest.mark.parametrize(
    ("fallen", "rate", "numbers", "may_be"),
    [(0.0, 0.05, 20, False), (0.1, 0.1, 1000, True), (0.2, 0.1, 1000, False), (0.2, 0.1, 20, True)],
)
def test_about_as_many_fall_as_the_rate_says(fallen, rate, numbers, may_be):
    assert is_by_chance(fallen, rate, numbers) == may_be


def test_numbers_that_make_no_difference_tell_nothing():
    nought = np.zeros(3)
    assert share_fallen(nought, [nought], 0.9, nought) == (None, 0.0)
