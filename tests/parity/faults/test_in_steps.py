"""A bug in steps alone: a token of the prompt is right, one behind it as the bug has it. By law."""

import numpy as np
import pytest

from lockstep.parity.faults import catalogue
from lockstep.parity.faults.in_steps import ALONE, CHUNKED, SINGLY, in_steps, in_steps_alone
from lockstep.parity.faults.rewrites import skipped
from lockstep.parity.graph import Value
from tests.parity.faults.hand_made import call, graph_of, value_of, wrong
from tests.parity.faults.planted import world

RNG = np.random.default_rng(8)
X, W = RNG.standard_normal((1, 5, 4)), RNG.standard_normal((3, 4))
FIRST = 3


def graph(steps=(FIRST,)):
    return graph_of(call(0, "scale", X, by=1.0), call(1, "linear", Value(0), W, None), steps=steps)


def doubled(one, graph):
    return one.followed(lambda ops, y: 2 * y) if one.op == "linear" else None


def test_tokens_of_steps_are_wrong_and_no_others():
    found = wrong(graph(), in_steps(doubled))
    np.testing.assert_array_equal(found[:, :FIRST], (X @ W.T)[:, :FIRST])
    np.testing.assert_array_equal(found[:, FIRST:], 2 * (X @ W.T)[:, FIRST:])


@pytest.mark.parametrize(("which", "rows"), [(SINGLY, [2]), (CHUNKED, [3, 4])])
def test_it_may_be_in_steps_of_one_token_or_of_several(which, rows):
    """Two tokens, then one, then two."""
    found = wrong(graph(steps=(2, 3)), in_steps(doubled, which))
    expected = X @ W.T
    expected[:, rows] *= 2
    np.testing.assert_array_equal(found, expected)
    here = graph(steps=(3,) if which == SINGLY else (3, 4))
    assert all(in_steps(doubled, which)(one, here) is None for one in here.calls)


def test_what_is_wrong_before_stays_in_all_tokens():
    def both(one, graph):
        other = one.with_changed(0, lambda ops, x: -x) if one.op == "linear" else None
        return None if other is None else in_steps(doubled)(other, graph)

    found = wrong(graph(), both)
    np.testing.assert_array_equal(found[:, :FIRST], -(X @ W.T)[:, :FIRST])
    np.testing.assert_array_equal(found[:, FIRST:], -2 * (X @ W.T)[:, FIRST:])


def test_without_steps_there_are_none():
    here = graph(steps=())
    assert all(in_steps(doubled)(one, here) is None for one in here.calls)


@pytest.mark.parametrize("id", ["rope-sign-flipped", "attn-scale-twice", "qkv-bias-dropped"])
def test_variants_of_the_catalogue_leave_a_prompt_as_it_is(id):
    (fault,) = (one for one in catalogue() if one.id == id)
    here = world("llama/mistral_window, decoded")
    first = here.graph.steps[0]
    for name, rewrite in in_steps_alone(fault).variants.items():
        assert name.endswith(ALONE)
        calls = here.calls(rewrite)
        for number, one in list(calls.items())[:2]:
            axis = here.graph.token_axes[number][0]
            run = here.evaluator()
            right, found = (run.target(number, some) for some in ({}, {number: one}))
            same = np.moveaxis(right == found, axis, 0).reshape(right.shape[axis], -1).all(axis=1)
            assert same[:first].all() and not same[first:].all()


def test_what_only_several_calls_are_together_is_left_out():
    for fault in catalogue():
        apart = len({*fault.whole, *fault.throughout, *fault.pairs})
        assert len(in_steps_alone(fault).variants) == len(fault.variants) - apart


def test_by_hand_a_norm_is_right_in_the_prompt():
    x = RNG.standard_normal((1, 4, 6))
    here = graph_of(
        call(0, "scale", x, by=1.0), call(1, "rms_norm", Value(0), np.ones(6), eps=0.0), steps=(2,)
    )
    found = wrong(here, in_steps(skipped("rms_norm")))
    np.testing.assert_array_equal(found[:, :2], value_of(here, 1)[:, :2])
    np.testing.assert_array_equal(found[:, 2:], x[:, 2:])
