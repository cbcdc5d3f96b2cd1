"""What a bug would have spoilt speaks against it. By law."""

import numpy as np

from lockstep.parity.explaining.searching.hypothesis import Atom, hypotheses, rewritten
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import explained, graph_of, ids, is_of, model_of

NAME = "models/untied_float32"
BUGS = {
    "qk-norm-rope-order": "dumped behind both",
    "rope-query-position-shifted": "queries one late",
}
RIVAL = "rope-pos-starts-at-1"  # the same for queries, and it would turn the keys too


def test_what_another_bug_brings_into_a_piece_speaks_against_its_rivals():
    """Norms behind the turn show how keys turn: by their own positions, where queries do not."""
    model, graph = model_of(NAME), graph_of(NAME)
    known = [one for one in catalogue() if one.id in (*BUGS, RIVAL)]
    atoms = [
        Atom(one, one.calls) for one in hypotheses(known, graph) if BUGS.get(one.id) == one.variant
    ]
    dtype = np.dtype(np.float32)
    run = Evaluator(graph, ways(dtype)[1][0], dtype, {}, Tensors(model.checkpoint))
    calls = rewritten(atoms, graph)
    taps = {
        tap: run.target(number, calls)
        for tap, number in graph.taps.items()
        if is_of("modules", tap)
    }
    found = explained(NAME, taps, known)
    assert ids(found) == {*BUGS} and not found.unexplained
    assert [one.also_fits for one in found.faults] == [[], []]
