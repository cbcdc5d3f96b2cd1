"""One rank of several, whose part was never added to the others'. By loop, and on small models."""

import numpy as np
import pytest

from lockstep.parity.faults.ranks import FAULTS
from lockstep.parity.graph import Value
from tests.parity.faults.hand_made import call, graph_of, variant, wrong
from tests.parity.faults.planted import check_in_every_way, check_shows, variants, world

NAMES = ("models/untied_float32", "gpt2/variant", "models/affine_4_64")
RNG = np.random.default_rng(5)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, {})


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


@pytest.mark.parametrize(
    ("name", "columns"),
    [("the first of 2", [0, 1, 2, 3]), ("the last of 2", [4, 5, 6, 7]), ("the last of 4", [6, 7])],
)
def test_the_sum_over_a_ranks_columns_by_loop(name, columns):
    x, weight, bias = RNG.standard_normal((1, 3, 8)), RNG.standard_normal((5, 8)), np.ones(5)
    graph = graph_of(
        call(0, "scale", x, by=1.0),
        call(1, "linear", Value(0), weight, bias, place="mlp.down_proj", layer=0),
    )
    found = wrong(graph, variant("tp-one-rank-alone", name))
    expected = sum(x[0, :, [k]].T * weight[:, k] for k in columns) + bias
    np.testing.assert_allclose(found[0], expected, atol=1e-13)


def test_what_is_not_dealt_out_by_inputs_is_left():
    calls = world(NAMES[0]).calls(variant("tp-one-rank-alone", "the first of 2"))
    graph = world(NAMES[0]).graph
    assert {graph.calls[one].place.split(".")[-1] for one in calls} == {"o_proj", "down_proj"}
