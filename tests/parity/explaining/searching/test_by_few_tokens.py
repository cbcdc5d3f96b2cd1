"""What comes near to a few tokens, in the variants that all tokens tell."""

import numpy as np

from lockstep.parity.explaining.searching.hypothesis import Atom, hypotheses
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import graph_of, model_of, port

NAME, TAP = "models/untied_float32", "model.layers.0.self_attn.o_proj"
MASK, VALUES = "mask-polarity-inverted", "rope-applied-to-v"
OUTLIVED = "blocked by a number that a sum in float32 outlives"
ROUNDED = "rope-inv-freq-half[frequencies in bfloat16]"


def test_a_set_is_gone_on_with_in_the_variants_that_are_nearest_to_all_tokens():
    """By law: the last query sees nothing, and its variant hides a small bug in all others."""
    model, graph = model_of(NAME), graph_of(NAME)
    taps = port(NAME, [ROUNDED, VALUES, f"{MASK}[{OUTLIVED}]"], dtype="float16")
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(np.float16), values, Tensors(model.checkpoint))
    piece = graph.piece(graph.taps[TAP], values)
    atoms = {
        (one.id, one.variant): Atom(one, calls)
        for one in hypotheses(catalogue(), graph)
        if one.id in (MASK, VALUES) and (calls := one.calls & frozenset(piece.calls))
    }
    search = Search(trial, piece, [*atoms.values()])
    plain, right = (frozenset([atoms[MASK, one], atoms[VALUES, ""]]) for one in ("", OUTLIVED))
    assert search.fit(right)[0] < search.fit(plain)[0] / 10
    for atoms_of in (plain, right):
        assert search.in_best_variants(atoms_of, search.atoms) == right
    assert search.near([plain], search.atoms)[0] == right
