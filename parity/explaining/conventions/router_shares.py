"""What a router returns first, under the name of its scores: all experts' probabilities.

transformers' routers of Gemma 4 return them. A port that goes on from other scores than the right
ones is seen in what it chooses, which is judged as if no scores had been dumped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.dumped_late import CLEARLY
from lockstep.parity.explaining.conventions.readings import takers_of
from lockstep.parity.explaining.copied_early import but_for
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.steps.steps import Joined
from lockstep.parity.faults.logits import probabilities
from lockstep.parity.naming.grouping import grouped

SAID = "{taps}: probabilities of experts, as their values say: right as the softmax of the scores"


def router_shares(case: Case) -> tuple[Joined, list[str]]:
    """Return where the taps are but for routers' probabilities, and a line, if all scores are."""
    scores = frozenset(one for one in case.dumped if is_for_router(case, one))
    if not scores or not all(is_softmax(case, one) for one in scores):
        return case.sides, []
    without = but_for(case, scores)
    if not all(is_meant(one, case.trial, without) for one in scores):
        return case.sides, []
    gone = [tap for tap in case.sides.names if case.graph.taps.get(tap) in scores]
    kept = {tap: name for tap, name in case.sides.names.items() if tap not in gone}
    said = SAID.format(taps=grouped([case.sides.names[tap] for tap in gone]))
    return replace(case.sides, names=kept, moved=Counter()), [said]


def is_for_router(case: Case, number: int) -> bool:
    """Say whether a value is what a router chooses by, and nothing else is made of it."""
    takers = {case.graph.calls[one].op for one in case.graph.consumers[number]}
    return case.graph.judges(number) and takers == {"top_k_routing"}


def is_softmax(case: Case, number: int) -> bool:
    """Say whether a value is the softmax of what it should be, and not what it should be."""
    piece = case.graph.piece(number, case.dumped)
    if case.trial.judge(piece).passed:
        return False
    shared = case.graph.calls[number].followed(probabilities)
    return case.trial.judge(piece, {number: shared}).passed


def is_meant(number: int, there: Trial, gone: Trial) -> bool:
    """Say whether what the port computed next is no more right, and no nearer, with these scores.

    Where bugs hide it the values have to say it alone.
    """
    takers = takers_of(number, there)
    for piece in takers:
        other = gone.graph.piece(piece.target, gone.dumped)
        if gone.judge(other).passed or there.judge(piece).passed:
            return gone.judge(other).passed
        before, after = there.look(piece, {}).raw(0, None), gone.look(other, {}).raw(0, None)
        if max(before, after) > CLEARLY * min(before, after):
            return after < before
    return bool(takers)
