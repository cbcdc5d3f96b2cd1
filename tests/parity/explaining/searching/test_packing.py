"""How others pack matrices is tried alone, and beside others where nothing else would show it."""

from collections import Counter

import numpy as np
import pytest

from lockstep.parity.explaining import case as module
from lockstep.parity.explaining.searching.hypothesis import hypotheses
from lockstep.parity.explaining.searching.packing import FAMILY, packing
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import explained, graph_of, port

NAME = "models/untied_float32"


def test_what_is_known_is_none_of_them():
    every = hypotheses(catalogue(), graph_of(NAME))
    ways = packing(every, ())
    assert ways and {one.fault.family for one in ways} == {FAMILY}
    one = sorted(ways, key=str)[0]
    assert packing(every, Counter([one])) == ways - {one}


@pytest.mark.parametrize(("level", "alone"), [("modules", True), ("layers", False)])
def test_it_is_tried_beside_others_where_no_value_shows_a_matrix_alone(level, alone, monkeypatch):
    """By hand: a dump of modules shows q_proj by itself, one of layers the head alone."""
    unpaired: list[bool] = []

    def explanations(search: Search, *words, **options):
        unpaired.append({one.fault.family for one in search.unpaired} == {FAMILY})
        return []

    monkeypatch.setattr(Search, "explanations", explanations)
    monkeypatch.setattr(module, "exchange", lambda case: None)
    taps = port(NAME, level=level)
    taps["model.layers.1"] = taps["model.layers.1"] + np.float32(1)
    explained(NAME, taps)
    assert unpaired and {*unpaired} == {alone}
