"""Judge every piece of a dump, explain those that are wrong, and say what was found."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.parity.capture.ways import ways_of
from lockstep.parity.explaining.caches.compared import read_caches
from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.before_the_sum import read_added
from lockstep.parity.explaining.conventions.codes import settle_codes
from lockstep.parity.explaining.conventions.counted_from_one import sort_counted
from lockstep.parity.explaining.conventions.finer_routers import sort_finer
from lockstep.parity.explaining.conventions.masked_scores import read_masked
from lockstep.parity.explaining.conventions.readings import read_as_meant
from lockstep.parity.explaining.conventions.rounded_when_stored import sort_as_stored
from lockstep.parity.explaining.conventions.some_in_half import sort_some_stored
from lockstep.parity.explaining.conventions.square import read_turned
from lockstep.parity.explaining.conventions.undone_factors import sort_undone
from lockstep.parity.explaining.deciding.at_its_end import keep_ended
from lockstep.parity.explaining.deciding.by_bits import keep_heard
from lockstep.parity.explaining.deciding.contradiction import Beside
from lockstep.parity.explaining.deciding.done_before import withdraw_done_before
from lockstep.parity.explaining.deciding.duel import winners
from lockstep.parity.explaining.deciding.exchanged_names import withdraw_exchanged_names
from lockstep.parity.explaining.deciding.handed_on import withdraw_handed_on
from lockstep.parity.explaining.deciding.helping import keep_helping
from lockstep.parity.explaining.deciding.in_common import in_common
from lockstep.parity.explaining.deciding.known_elsewhere import offer_known
from lockstep.parity.explaining.deciding.left_layers import name_left_layers, name_unseen_layers
from lockstep.parity.explaining.deciding.moved_up import name_moved_up
from lockstep.parity.explaining.deciding.of_like_pieces import prefer_like_pieces
from lockstep.parity.explaining.deciding.one_bug import with_shared_ties
from lockstep.parity.explaining.deciding.one_rule import keep_one_rule
from lockstep.parity.explaining.deciding.one_value import withdraw_one_value
from lockstep.parity.explaining.deciding.poor import withdraw_poor
from lockstep.parity.explaining.deciding.refuted import withdraw_refuted
from lockstep.parity.explaining.deciding.rules import give_up_rules
from lockstep.parity.explaining.deciding.subtle import subtle, withdraw_noise
from lockstep.parity.explaining.deciding.taken_on import keep_taken_on
from lockstep.parity.explaining.deciding.too_large import withdraw_too_large
from lockstep.parity.explaining.deciding.under_the_gate import look_under_the_gate
from lockstep.parity.explaining.deciding.verdict import Chosen, Key, decide
from lockstep.parity.explaining.fitting.beside import fit_beside
from lockstep.parity.explaining.fitting.fitted import fit_numbers
from lockstep.parity.explaining.said.counterfactual import not_accounted_for
from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.explaining.said.filed import file
from lockstep.parity.explaining.said.left_open import left_open
from lockstep.parity.explaining.said.naming import named, named_by_vote
from lockstep.parity.explaining.searching.untrained import (
    Random,
    doubtful,
    untrained,
)
from lockstep.parity.explaining.searching.untrained_and_more import untrained_and_more
from lockstep.parity.explaining.searching.untrained_beside import untrained_beside
from lockstep.parity.explaining.steps.alone import explain_steps
from lockstep.parity.explaining.whole_runs import whole_runs
from lockstep.parity.graph.graph import Piece

Progress = Callable[[str], None]


def diagnose(case: Case, result: Diagnosis, progress: Progress) -> None:
    """Put together in `result` what is wrong, which bugs explain it, and what is left open."""
    sort(case, result, progress)
    random = search(case, progress)
    result.conventions += settle_codes(case)
    chosen = choose(case)
    result.conventions += withdraw_exchanged_names(chosen, case)
    quiet, farther, freed = subtle(case, chosen.values())
    withdraw_noise(chosen, freed)
    result.conventions += withdraw_too_large(chosen, case)
    case.set_aside()
    by_vote = {(bug.hypothesis.id, bug.hypothesis.variant): bug for bug, _ in quiet}
    result.taps, result.counterfactual = whole_runs(case, chosen | by_vote)
    quiet = [] if withdraw_refuted(chosen, case, result) else quiet
    found = [*(one.named for one in random), *(named(bug, case) for bug in chosen.values())]
    found += [*case.cached.bugs, *(named_by_vote(bug, votes, case) for bug, votes in quiet)]
    file(found, case, result)
    result.unexplained += left_open(case, farther)
    if result.faults and not result.unexplained:
        result.conventions += not_accounted_for(result.counterfactual)
    count(case, result)


def sort(case: Case, result: Diagnosis, progress: Progress) -> None:
    """Read the values as they are meant, and tell the pieces that are right from the others."""
    if case.sides.caches:
        case.cached = read_caches(case)
    result.conventions += case.written
    later = ways_of(case.sides.dump).scales_later
    result.conventions += read_as_meant(case.trial, later=later)
    result.conventions += read_turned(case.trial)
    result.conventions += read_masked(case.trial)
    result.conventions += read_added(case.trial)
    case.sort(progress)
    result.conventions += sort_undone(case, progress)
    result.conventions += sort_as_stored(case, progress)
    result.conventions += sort_some_stored(case, progress)
    result.conventions += sort_counted(case)
    result.conventions += sort_finer(case)


def search(case: Case, progress: Progress) -> list[Random]:
    """Search the pieces that are wrong; return the weights of random numbers that were found.

    They are looked for first, beside what was found, and behind it: no bug explains them.
    """
    random = list(untrained(case))
    case.wrong = but_for(random, case.wrong)
    explain_steps(case, progress)
    case.search(progress)
    fit_beside(case, fit_numbers(case, progress), progress)
    give_up_rules(case, [one.piece for one in random])
    random = [one for one in random if one.seen or not case.explained_after_all(one.piece)]
    keep_one_rule(case)
    withdraw_handed_on(case)
    keep_ended(case)
    keep_helping(case)
    keep_taken_on(case)
    for more in (untrained_beside, untrained_and_more):
        random += more(case)
        case.open = but_for(random, case.open)
    withdraw_one_value(case)
    withdraw_poor(case)
    offer_known(case)
    prefer_like_pieces(case)
    look_under_the_gate(case)
    doubted = doubtful(random, case)
    case.open += [one.piece for one in doubted]
    return [one for one in random if one not in doubted]


def choose(case: Case) -> dict[Key, Chosen]:
    """Decide between the explanations of all pieces."""
    known = case.explained
    common = in_common(known, Beside(case.trial, case.right, known), case.graph)
    explained = keep_heard(winners(known, case.trial, common), case.trial)
    beside = Beside(case.trial, case.right, explained)
    common = in_common(explained, beside, case.graph)
    chosen = decide(explained, case.contradicted(), beside, case.graph.kind, common)
    withdraw_done_before(chosen, case)
    name_unseen_layers(chosen, case)
    with_shared_ties(chosen, case.graph)
    name_left_layers(chosen, case)
    name_moved_up(chosen, case)
    return chosen


def count(case: Case, result: Diagnosis) -> None:
    """Say how much was compared, and what of the dump was not."""
    result.conventions += case.cached.told
    result.compared = len(case.judged) + case.cached.unjudged
    result.steps = len(case.graph.steps)
    result.not_judged = sorted(case.sides.not_judged)
    result.unmatched = sorted(
        name for tap, name in case.sides.names.items() if tap not in case.graph.taps
    )


def but_for(random: list[Random], pieces: list[Piece]) -> list[Piece]:
    return [piece for piece in pieces if all(piece is not one.piece for one in random)]
