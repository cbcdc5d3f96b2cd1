"""Say of a bug what a porter needs to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.parity.explaining.deciding.left_layers import layers_before
from lockstep.parity.explaining.deciding.verdict import Chosen
from lockstep.parity.explaining.deciding.votes import Votes
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.said.diagnosis import MOST_TIES, Named
from lockstep.parity.explaining.searching.hypothesis import rewritten
from lockstep.parity.explaining.steps.whereabouts import whereabouts

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

SURE = 0.99
PLAIN = "plain"  # a form without a name, beside others
MOST_RIVALS = 60  # other bugs that are tried for the runner-up


def named(bug: Chosen, case: Case) -> Named:
    """Return what is said of a bug: where it is, how sure that is, and what it leaves."""
    fault = bug.hypothesis.fault
    before = [case.judged[piece.target] for piece in bug.pieces]
    worst = max(range(len(before)), key=lambda place: before[place].ratio)
    best = explanation_of(bug, worst, case)
    after = best.judgement
    ties = sorted(told_beside(bug, case))[:MOST_TIES]
    return Named(
        id=fault.id,
        variant=variants(bug),
        taps=[case.tap(piece) for piece in bug.pieces],
        layers=layers(bug, case),
        confidence=round(SURE / (1 + len(ties)), 3),  # shared among those that fit as well
        residual_before=before[worst].own_error,
        residual_after=after.own_error,
        noise=after.noise,
        runner_up=runner_up(bug, worst, best, case),
        also_fits=ties,
        fix=fault.fix,
        wrong=fault.wrong,
        right=fault.right,
        where=whereabouts(bug.pieces, case),
        put_into=put_into(bug, case),
    )


def told_beside(bug: Chosen, case: Case) -> set[str]:
    """Return what fits as well. A number that was fitted is no rival of a class that has forms of
    its own: what both do has a name.
    """
    others = {id for id, _ in bug.ties} - {bug.hypothesis.id}
    fitted = {id for id in others if not case.faults[id].variants}
    return others - fitted if bug.hypothesis.fault.variants else others


def named_by_vote(bug: Chosen, votes: Votes, case: Case) -> Named:
    """Return what is said of a bug that moves nothing by more than a rounding."""
    fault = bug.hypothesis.fault
    judged = case.judged[bug.pieces[0].target]
    return Named(
        id=fault.id,
        variant=bug.hypothesis.variant or None,
        taps=[case.tap(piece) for piece in bug.pieces],
        layers=layers(bug, case),
        confidence=round(SURE * votes.share, 3),
        residual_before=judged.own_error,
        residual_after=judged.own_error,
        noise=judged.noise,
        runner_up=None,
        also_fits=[],
        fix=fault.fix,
        wrong=fault.wrong,
        right=fault.right,
        votes={"fault": votes.fault, "right": votes.right, "neither": votes.neither},
        put_into=put_into(bug, case),
    )


def layers(bug: Chosen, case: Case) -> list[int]:
    if bug.layers:
        return [*bug.layers]
    if bug.hypothesis.fault.behind:
        return sorted(layers_before(bug.calls, case.graph))
    return bug.layers_in(case.graph)


def put_into(bug: Chosen, case: Case) -> list[str]:
    """Return the taps of what a bug was put into, where pieces are larger than that: of a value
    without one, the next that has. Nothing, if these are the pieces' own.
    """
    tapped = [call for call in case.graph.calls if call.taps]
    made = sorted(bug.calls)
    found = [next((c for c in tapped if c.number >= number), tapped[-1]) for number in made]
    names = dict.fromkeys(call.taps[0] for call in found)
    own = {piece.target for piece in bug.pieces}
    return [] if own >= {call.number for call in found} else [*names]


def variants(bug: Chosen) -> str | None:
    """Return the variant, with those of the same bug that nothing here tells apart."""
    alike = sorted(
        {bug.hypothesis.variant, *(v for name, v in bug.ties if name == bug.hypothesis.id)}
    )
    return None if alike == [""] else " or ".join(one or PLAIN for one in alike)


def explanation_of(bug: Chosen, place: int, case: Case) -> Explanation:
    """Return the set that explains one of a bug's pieces."""
    explanations = next(found for one, found in case.explained if one is bug.pieces[place])
    return next((one for one in explanations if bug.atoms[place] in one.atoms), explanations[0])


def runner_up(bug: Chosen, place: int, best: Explanation, case: Case) -> dict[str, Any] | None:
    """Return the best other bug in its place, and what it leaves of the error."""
    piece, atom = bug.pieces[place], bug.atoms[place]
    excluded = {bug.hypothesis.id, *(name for name, _ in bug.ties)}
    found: list[tuple[float, str]] = []
    for other in case.candidates(piece):
        if other.hypothesis.id in excluded or len(found) > MOST_RIVALS:
            continue
        calls = rewritten(best.atoms - {atom} | {other}, case.graph)
        if calls is not None:
            found.append((case.trial.look(piece, calls).raw(0, None), other.hypothesis.id))
    if not found:
        return None
    ratio, name = min(found)
    return {"id": name, "residual": ratio * case.trial.relative_noise(piece, None)}
