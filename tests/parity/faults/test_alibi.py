"""ALiBi where there is none: its slopes by hand, scores by loop, and told from a dump."""

import numpy as np
import pytest

from lockstep.parity.faults.alibi import even_slopes, slopes
from tests.parity.explaining.ports import explained, port
from tests.parity.faults.hand_made import call, graph_of, value_of, variant, wrong

LENGTH = 5
RNG = np.random.default_rng(31)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [(4, [2**-2, 2**-4, 2**-6, 2**-8]), (3, [2**-4, 2**-8, 2**-2]),
     (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])],
)  # fmt: skip
def test_slopes_by_hand(heads, expected):
    """As the paper's own code has them: every other one of twice as many behind a power of two."""
    assert slopes(heads).tolist() == expected


def test_slopes_of_a_formula_for_any_number_of_heads():
    """By law: of a power of two they are the same."""
    np.testing.assert_allclose(even_slopes(8), slopes(8))
    np.testing.assert_allclose(even_slopes(3), 2.0 ** np.array([-8 / 3, -16 / 3, -8]))


def test_scores_are_lowered_by_distance_by_loop():
    queries, keys = (RNG.standard_normal((1, 4, LENGTH, 6)) for _ in range(2))
    graph = graph_of(call(0, "attention_scores", queries, keys, scale=0.5, layer=0))
    found, right = wrong(graph, variant("alibi-added")), value_of(graph, 0)
    for head, i, j in np.ndindex(4, LENGTH, LENGTH):
        lower = 2.0 ** (-2 * (head + 1)) * (i - j)
        assert found[0, head, i, j] == pytest.approx(right[0, head, i, j] - lower)


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_alibi_is_named(level):
    name = "models/untied_float32"
    found = explained(name, port(name, ["alibi-added"], level=level))
    assert [one.id for one in found.faults] == ["alibi-added"] and not found.unexplained
