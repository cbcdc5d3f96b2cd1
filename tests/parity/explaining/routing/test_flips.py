"""Which choices of a router rounding may turn, by whatever rule it chooses: by hand, by law."""

import numpy as np
import pytest

from lockstep.parity.explaining.routing import flips
from lockstep.parity.explaining.routing.flips import near_border, near_choice
from lockstep.parity.explaining.searching.hypothesis import Atom, hypotheses, rewritten
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import graph_of, model_of, port


def test_a_choice_is_near_where_the_chosen_end():
    """By hand: four experts; the two lowest are chosen, or the first and the third."""
    centre = np.array([[[3.0, 1.0 + 1e-6, 1.0, 0.0], [3.0, 3.0 - 1e-6, 1.0, 0.0]]])
    spread = [centre + 1e-7]
    lowest = np.array([[[False, False, True, True]] * 2])
    assert near_border(centre, spread, lowest).tolist() == [[True, False]]
    other = np.array([[[True, False, True, False]] * 2])
    assert near_border(centre, spread, other).tolist() == [[True, True]]
    assert near_border(centre, spread, ~(other & False)).tolist() == [[False, False]]
    centre[0, 1, 3] = np.nan
    assert near_border(centre, spread, lowest)[0, 1]


def test_the_highest_are_chosen_as_they_always_were():
    rng = np.random.default_rng(5)
    centre = rng.normal(size=(2, 50, 6))
    spread = [centre + 0.01 * rng.normal(size=centre.shape)]
    highest = centre >= np.sort(centre, axis=-1)[..., -3, None]
    found = near_border(centre, spread, highest)
    assert 0 < found.sum() < found.size and (found == near_choice(centre, spread, 3)).all()


@pytest.mark.parametrize("bug", ["moe-selects-lowest", "moe-renorm-missing"])
def test_tokens_are_unsure_by_the_choice_that_a_bug_makes(bug, monkeypatch):
    """By law: the lowest are the highest of the negative scores, which are as near."""
    name = "qwen3_moe/separate"
    model, graph = model_of(name), graph_of(name)
    taps = port(name, [bug], level="layers")
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    piece = graph.piece(graph.taps["model.layers.1"], values)
    some = [one for one in hypotheses(catalogue(), graph) if one.id == bug]
    calls = rewritten([Atom(some[0], some[0].calls & frozenset(piece.calls))], graph)
    (router,) = trial.routers_of(piece)
    (scores,) = graph.sources(router.number)
    monkeypatch.setattr(flips, "NEAR", 2e5)
    sign = -1 if bug == "moe-selects-lowest" else 1
    centre = trial.centre(None).target(scores)
    spread = [way.target(scores) for way in trial.ways(None)]
    wanted = near_choice(sign * centre, [sign * way for way in spread], router.options["per_token"])
    found, usual = trial.unsure(piece, calls), trial.unsure(piece, {})
    assert 0 < wanted.sum() < wanted.size and (found == wanted).all()
    assert (usual == wanted).all() == (sign == 1)
