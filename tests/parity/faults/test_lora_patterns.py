"""Patterns of alpha and of rank that nobody looks at. By hand: three modules, one is its own."""

import numpy as np
import pytest

from lockstep.parity.faults.lora_patterns import usual_of
from lockstep.parity.graph import Value
from tests.parity.faults.hand_made import call, graph_of, variant, wrong

RNG = np.random.default_rng(31)
X, W = RNG.standard_normal((1, 4, 6)), RNG.standard_normal((6, 6))
USUAL, RANK = 8.0, 2


def adapted(rank: int, alpha: float):
    """Three modules in a row, the last with a rank and an alpha of its own."""
    sizes = [(RANK, USUAL), (RANK, USUAL), (rank, alpha)]
    calls = [call(0, "scale", X, by=1.0)]
    for number, (size, top) in enumerate(sizes):
        a, b = np.ones((size, 6)), np.eye(6, size)
        place = {"place": f"mlp.m{number}", "layer": 0}
        first = 2 * number
        calls += [
            call(first + 1, "linear", Value(first), W, None, **place),
            call(first + 2, "add_lora", Value(first + 1), Value(first), a, b, scale=top / size,
                 **place),
        ]  # fmt: skip
    return graph_of(*calls)


def passed(scales: list[float], sizes: list[int]) -> np.ndarray:
    x = X
    for scale, size in zip(scales, sizes, strict=True):
        x = x @ (W + scale * np.eye(6, size) @ np.ones((size, 6))).T
    return x


@pytest.mark.parametrize(("name", "rank", "alpha", "last"), [
    ("of alpha", 4, 20.0, USUAL / 4), ("of the rank", 4, 20.0, 20.0 / RANK),
])  # fmt: skip
def test_a_module_of_its_own_gets_what_most_have(name, rank, alpha, last):
    found = wrong(adapted(rank, alpha), variant("lora-patterns-ignored", name))
    expected = passed([USUAL / RANK, USUAL / RANK, last], [RANK, RANK, rank])
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["of alpha", "of the rank"])
def test_where_all_are_alike_there_is_nothing_to_ignore(name):
    graph = adapted(RANK, USUAL)
    rewrite = variant("lora-patterns-ignored", name)
    assert all(rewrite(one, graph) is None for one in graph.calls)


def test_values_that_differ_by_rounding_are_one():
    assert usual_of([5.0, 8.0, 8.0 + 1e-12, 5.0, 8.0 - 1e-12]) == 8.0
