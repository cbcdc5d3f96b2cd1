"""Random numbers beside a bug that one layer alone has are named with it. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.searching import untrained_and_more
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import explained, graph_of, port
from tests.parity.explaining.searching.test_untrained import DROPPED, NAME, behind_heads, drawn
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

PROMPT = 70
EVERYWHERE, ALONE = "attn-scale-twice", "head-merge-without-transpose"


@long
@pytest.mark.parametrize(("deviation", "named"), [(0.02, True), (0.2, False)])
def test_what_heads_hand_on_is_known_with_one_bug_more(deviation, named):
    """The heads of all layers have one bug, those of the second layer another one too."""
    taps = port(NAME, [EVERYWHERE], length=PROMPT)
    graph = graph_of(NAME, PROMPT)
    taps = behind_heads(taps, [EVERYWHERE, ALONE], graph, drawn(deviation))
    known = [one for one in catalogue() if one.id in (EVERYWHERE, ALONE, DROPPED)]
    found = explained(NAME, taps, known, length=PROMPT)
    layers = {one.id: one.layers for one in found.faults if one.id != EVERYWHERE}
    assert layers == ({ALONE: [1], DROPPED: [1]} if named else {})
    tap = "model.layers.1.self_attn.o_proj"
    assert (tap in {one.tap for one in found.unexplained}) != named


def dump_and_bugs():
    """Return a dump in which heads are wrong and a projection behind them was never loaded."""
    taps = port(NAME, [EVERYWHERE], length=PROMPT)
    graph = graph_of(NAME, PROMPT)
    taps = behind_heads(taps, [EVERYWHERE, ALONE], graph, drawn(0.02))
    known = [one for one in catalogue() if one.id in (EVERYWHERE, ALONE, DROPPED)]
    return taps, known


@long
@pytest.mark.parametrize(("budget", "asked"), [(2, 0), (8000, 1)])
def test_no_more_is_computed_than_in_a_search(monkeypatch, budget, asked):
    """By count: with the heads' inputs of one set alone, nothing is solved for."""
    taps, known = dump_and_bugs()
    found = []
    monkeypatch.setattr(untrained_and_more, "most_computations", lambda *piece: budget)
    monkeypatch.setattr(untrained_and_more, "sample_with", lambda *given: found.append(given))
    given = untrained_and_more.given
    monkeypatch.setattr(untrained_and_more, "given", lambda case, *some: spent(case, given, some))
    explained(NAME, taps, known, length=PROMPT)
    assert len(found) == asked


def spent(case, given, some):
    case.trial.count += 1  # each costs two
    return given(case, *some)


def test_what_leaves_the_input_as_it_is_is_not_solved_again(monkeypatch):
    """By count: a bug that changes nothing here is tried like the others, and asked nothing."""
    taps, known = dump_and_bugs()
    asked = []
    monkeypatch.setattr(untrained_and_more, "given", lambda *_: np.ones(1))
    monkeypatch.setattr(untrained_and_more, "sample_with", lambda *given: asked.append(given))
    explained(NAME, taps, known, length=PROMPT)
    assert asked == []
