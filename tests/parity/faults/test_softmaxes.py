"""Softmaxes over other axes, and in fewer bits: by loop, by hand and by law."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.parity.faults.softmaxes import in_half, over_queries, over_queries_masked_after
from lockstep.parity.graph import Graph, Value
from lockstep.parity.noise import namespace, of_port, ways
from lockstep.parity.noise.conventions import EAGER, SDPA, WIDE
from lockstep.parity.noise.exact import FLOAT64, exact
from lockstep.reference import ops
from lockstep.reference.precision import dtype_named
from tests.parity.faults.hand_made import call, graph_of, value_of, variant, wrong

LENGTH = 5
RNG = np.random.default_rng(11)
POSITIONS = np.arange(LENGTH)[None]


def softmax(mask: np.ndarray, given: np.ndarray) -> Graph:
    return graph_of(
        call(0, "causal_mask", POSITIONS, POSITIONS, window=None),
        call(1, "scale", given, by=1.0),
        call(2, "softmax", Value(1), Value(0), masked_row="uniform", layer=0),
    )


def test_softmax_over_queries_and_heads_by_loop():
    given = RNG.standard_normal((1, 3, LENGTH, LENGTH))
    seen = np.tril(np.ones((LENGTH, LENGTH), bool))
    found = wrong(softmax(seen, given), variant("softmax-wrong-axis", "over queries"))
    for key in range(LENGTH):
        powers = np.where(seen[:, key], np.exp(given[0, :, :, key]), 0)
        expected = powers / powers.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(found[0, :, :, key], expected, atol=1e-13)
    found = wrong(softmax(seen, given), variant("softmax-wrong-axis", "over heads"))
    shares = np.exp(given[0]) / np.exp(given[0]).sum(axis=0)
    np.testing.assert_allclose(found[0], np.where(seen, shares, 0), atol=1e-13)


@pytest.mark.parametrize(
    ("name", "heads"), [("over all of a head", 1), ("over all of all heads", 3)]
)
def test_softmax_over_all_there_is_by_loop(name, heads):
    """Each query's largest score is taken off before; the second pass is of two tokens."""
    given = RNG.standard_normal((1, 3, LENGTH, LENGTH))
    seen = np.tril(np.ones((LENGTH, LENGTH), bool))
    graph = replace(softmax(seen, given), steps=(3,))
    found = wrong(graph, variant("softmax-wrong-axis", name))
    powers = np.zeros_like(given)
    for head, query in np.ndindex(3, LENGTH):
        for key in range(query + 1):
            most = given[0, head, query, : query + 1].max()
            powers[0, head, query, key] = np.exp(given[0, head, query, key] - most)
    for head, query in np.ndindex(3, LENGTH):
        rows = np.s_[:3] if query < 3 else np.s_[3:]
        total = (powers[0, :, rows] if heads == 3 else powers[0, head, rows]).sum()
        expected = powers[0, head, query] / total
        np.testing.assert_allclose(found[0, head, query], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("bug", "unseen"), [(over_queries, 1 / LENGTH), (over_queries_masked_after, 0)]
)
def test_a_key_that_no_query_sees_is_shared_out_among_all_or_none(bug, unseen):
    """By loop: of an inverted mask no query sees the first key, and the last one sees nothing."""
    given = RNG.standard_normal((1, 3, LENGTH, LENGTH))
    seen = np.triu(np.ones((LENGTH, LENGTH), bool), k=1)
    found = bug(ops, given, seen, masked_row="uniform")
    np.testing.assert_allclose(found[..., 0], unseen, rtol=1e-12)
    assert not found[..., -1, 1:].any()
    for key in range(1, LENGTH):
        powers = np.where(seen[:, key], np.exp(given[0, :, :, key]), 0)
        expected = powers / powers.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(found[0, :, :, key], expected, atol=1e-13)


def test_scores_and_shares_are_rounded_around_a_wide_softmax():
    """By hand: 1.001 is 1 in bfloat16, so both keys have a half; a third of it is rounded."""
    seen = np.ones((1, 1, 1, 3), bool)
    graph = graph_of(
        call(0, "causal_mask", np.full((1, 1), 9), np.arange(3)[None], window=None),
        call(1, "scale", np.array([[[[1.0, 1.001, 1.0]]]]), by=1.0),
        call(2, "softmax", Value(1), Value(0), masked_row="uniform", layer=0),
    )
    found = wrong(graph, variant("softmax-low-precision", "before and behind it in bfloat16"))
    np.testing.assert_array_equal(found[seen], [0.333984375] * 3)


@pytest.mark.parametrize(("name", "eps"), [("in bfloat16", 2**-8), ("in float16", 2**-11)])
def test_a_softmax_in_half_is_off_by_a_few_roundings(name, eps):
    given = RNG.standard_normal((1, 3, LENGTH, LENGTH))
    graph = softmax(np.zeros(0), given)
    error = np.abs(wrong(graph, variant("softmax-low-precision", name)) - value_of(graph, 2)).max()
    assert eps / 50 < error < 8 * eps


def told_of(dtype: np.dtype) -> list[tuple[Any, np.dtype]]:
    """Return all operations that replay a port of some dtype, and what each computes in."""
    kept = [exact(of_port(ops, dtype), dtype_named(held)) for held in ("bfloat16", "float32")]
    named = [of_port(namespace(one), dtype) for one in (EAGER, SDPA, WIDE)]
    return [*ways(dtype), *((one, FLOAT64) for one in kept), *((one, dtype) for one in named)]


@pytest.mark.parametrize(
    ("kind", "half", "lost"),
    [
        ("float32", "bfloat16", True), ("float32", "float16", True),
        ("bfloat16", "bfloat16", False), ("bfloat16", "float16", True),
        ("float16", "bfloat16", False), ("float16", "float16", False),
    ],
)  # fmt: skip
def test_a_query_that_sees_nothing_is_lost_if_half_precision_lacks_the_ports_lowest_number(
    kind, half, lost
):
    """By hand: in each way, whether it widens scores, and whatever the weights are kept in."""
    given = RNG.standard_normal((1, 3, LENGTH, LENGTH)).astype(np.float32)
    seen = np.tri(LENGTH, k=-1, dtype=bool)
    for way, dtype in told_of(dtype_named(kind)):
        for work in (dtype, np.dtype(np.float32)):
            found = in_half(half)(way, given.astype(work), seen, masked_row="uniform")
            assert np.isnan(found[..., 0, :].astype(np.float64)).all() == lost
            assert np.isfinite(found[..., 1:, :].astype(np.float64)).all()


def test_a_softmax_with_one_more_in_its_sum_by_loop():
    given = RNG.standard_normal((1, 2, LENGTH, LENGTH))
    found = wrong(softmax(np.tril(np.ones((LENGTH, LENGTH), bool)), given),
                  variant("softmax-plus-one"))  # fmt: skip
    for head, query in np.ndindex(2, LENGTH):
        powers = [np.exp(given[0, head, query, key]) for key in range(query + 1)]
        expected = [one / (1 + sum(powers)) for one in powers] + [0.0] * (LENGTH - query - 1)
        np.testing.assert_allclose(found[0, head, query], expected, atol=1e-13)


def test_scores_that_are_large_leave_the_one_no_share():
    given = np.full((1, 1, LENGTH, LENGTH), 800.0)
    found = wrong(softmax(np.tril(np.ones((LENGTH, LENGTH), bool)), given),
                  variant("softmax-plus-one"))  # fmt: skip
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-13)
