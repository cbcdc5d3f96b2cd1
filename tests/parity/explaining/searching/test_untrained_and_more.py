"""Random numbers beside a bug that one layer alone has are named with it. By law."""

import pytest

from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import explained, graph_of, port
from tests.parity.explaining.searching.test_untrained import DROPPED, NAME, behind_heads, drawn

PROMPT = 70
EVERYWHERE, ALONE = "attn-scale-twice", "head-merge-without-transpose"


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
