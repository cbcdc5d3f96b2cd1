"""Room for an adapter in layers that have none, for a port that put adapters on other layers.

What else such a port does to them is said of the operation that adds an adapter. A layer without
one has no such operation; so it gets one that adds nothing, which a bug may move another's to.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, rewritten
from lockstep.parity.explaining.searching.settling import PROMISING
from lockstep.parity.graph.graph import Graph, Piece
from lockstep.parity.graph.recording import LAYER
from lockstep.reference.checkpoint.adapters import Adapter
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.model import Model


def with_room(model: Model) -> Model | None:
    """Return the model with an adapter of noughts wherever one of another layer may be put.

    None if there is no such place. Nothing has the place of DoRA's: no lengths leave rows alone.
    """
    modules = model.adapters.modules
    room = {
        path: replace(adapter, a=np.zeros_like(adapter.a), b=np.zeros_like(adapter.b))
        for other, adapter in modules.items()
        for path in in_other_layers(other, model)
        if path not in modules
        and adapter.magnitude is None
        and fits(path, adapter, model.checkpoint)
    }
    if not room:
        return None
    roomy = copy(model)
    roomy.adapters = replace(model.adapters, modules={**modules, **room})
    return roomy


def in_other_layers(path: str, model: Model) -> list[str]:
    """Return the modules of all layers that have the place of this one."""
    found = LAYER.match(path)
    if found is None:
        return []
    before, behind = path[: found.start(1)], path[found.end(1) :]
    return [f"{before}{layer}{behind}" for layer in range(model.config.num_hidden_layers)]


def fits(path: str, adapter: Adapter, checkpoint: Checkpoint) -> bool:
    """Say whether an adapter has the sizes of a module's matrix."""
    name = f"{path}.weight"
    if not checkpoint.has(name) or adapter.a.ndim != 2:
        return False
    return checkpoint.stored(name).shape == (adapter.b.shape[0], adapter.a.shape[1])


def seem_moved(case: Case) -> bool:
    """Say whether a wrong piece is right as soon as all adapters are on other layers."""
    rules = [one for one in case.hypotheses if one.throughout and of_adapters(one, case.graph)]
    moved = frozenset[int]().union(*(rule.calls for rule in rules))
    pieces = [one for one in case.graph.pieces(case.dumped) if not moved.isdisjoint(one.calls)]
    wrong = [one for one in pieces if not case.trial.judge(one).passed]
    return any(mends(rule, piece, case) for rule in rules for piece in wrong)


def mends(rule: Hypothesis, piece: Piece, case: Case) -> bool:
    """Say whether a rule leaves nothing of a piece's error but noise: roughly first."""
    here = rule.calls & frozenset(piece.calls)
    calls = rewritten([Atom(rule, here)], case.graph) if here else None
    if not calls or case.trial.look(piece, calls).raw(0, None) > PROMISING:
        return False
    return case.trial.judge(piece, calls).passed


def of_adapters(rule: Hypothesis, graph: Graph) -> bool:
    return any(graph.calls[number].op == "add_lora" for number in rule.calls)
