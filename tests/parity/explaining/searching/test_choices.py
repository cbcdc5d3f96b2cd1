"""What a bug owes to the choices of routers that were found for it. By hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining.routing.steering import ByChoices
from lockstep.parity.explaining.searching import by_stages, weighed
from lockstep.parity.explaining.searching import search as searching
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.judging.judge import Judgement
from tests.parity.explaining.ports import explained, port
from tests.sampled import sampled

NOTHING = frozenset()
ONE, TWO = (
    Atom(Hypothesis(SimpleNamespace(displaces={}), id, "", 0, frozenset()), frozenset())  # pyright: ignore[reportArgumentType]
    for id in ("one", "two")
)


def judged(error, *, passed=True):
    return Judgement(error, 1.0, error, error, error, passed, None)


def by_choices(error):
    return ByChoices.of(judged(error), {}, np.zeros(3, bool))


def search(others):
    """Return a search that found the choices of both bugs; `others` is what each rest makes with
    them, in the order that it is asked.
    """
    waiting = list(others)
    trial = SimpleNamespace(
        graph=SimpleNamespace(),
        count=0,
        judge_as_chosen=lambda piece, calls, other: waiting.pop(0),
    )
    found = Search(trial, SimpleNamespace(), [])  # pyright: ignore[reportArgumentType]
    found.judged[frozenset([ONE])] = by_choices(1.0)
    found.judged[frozenset([ONE, TWO])] = by_choices(1.0)
    return found


@pytest.mark.parametrize(("other", "owed", "cleared"), [
    (judged(2.0, passed=False), False, False),  # the bug brings the port nearer
    (judged(1.01, passed=False), True, False),  # the choices do
    (judged(1.4), True, True),  # right arithmetic makes them, and is all that there is
    (None, False, False),  # rounding does not make them
    (judged(np.nan, passed=False), False, False),  # the bug makes numbers of what is none
])  # fmt: skip
def test_a_bug_is_weighed_against_right_arithmetic_with_the_same_choices(other, owed, cleared):
    found = search([other])
    assert found.owed_to_choices(frozenset([ONE]), NOTHING) is owed
    assert found.owed_to_choices(frozenset([ONE]), NOTHING) is owed  # it is asked once
    assert (found.cleared is not None) is cleared and found.spent is cleared
    assert not cleared or not found.may_explain(frozenset([ONE]))


def test_a_bug_of_two_is_left_out_if_the_choices_of_both_do_for_the_other():
    found = search([judged(1.2)])
    assert found.owed_to_choices(frozenset([ONE, TWO]), frozenset([ONE]))
    assert found.judged[frozenset([ONE])] == judged(1.2) and found.cleared is None


def test_what_needs_no_choices_owes_them_nothing():
    found = search([])
    found.judged[frozenset([TWO])] = judged(1.0)
    assert not found.owed_to_choices(frozenset([TWO]), NOTHING)


@sampled(0)
def test_a_piece_that_turned_out_to_be_right_is_told_as_right(monkeypatch):
    def explanations(self, *given, **options):
        self.judged[NOTHING] = judged(0.5)
        return []

    monkeypatch.setattr(Search, "explanations", explanations)
    taps = port("models/untied_float32", ["final-norm-missing"], level="logits")
    found = explained("models/untied_float32", taps, [])
    assert (found.verdict, found.unexplained) == ("clean", [])
    assert [tap.own_error for tap in found.taps] == [0.5]


def test_bugs_that_exclude_each_other_are_not_weighed_as_right_arithmetic(monkeypatch):
    monkeypatch.setattr(weighed, "rewritten", lambda atoms, graph: None)
    found = search([judged(1.0)])
    assert not found.owed_to_choices(frozenset([ONE, TWO]), frozenset([ONE]))


def clears(self, *given, **options):
    self.judged[NOTHING] = judged(0.5)
    return []


def fails(*given, **options):
    raise AssertionError


def test_a_piece_that_is_right_after_all_is_searched_no_more(monkeypatch):
    monkeypatch.setattr(searching, "among", clears)
    monkeypatch.setattr(Search, "look_at", fails)
    assert search([]).explanations([], [], deep=True) == []


def test_nothing_else_is_tried_after_a_single_bug_cleared_a_piece(monkeypatch):
    monkeypatch.setattr(searching, "of_known", clears)
    monkeypatch.setattr(Search, "sets", fails)
    monkeypatch.setattr(searching, "with_siblings", fails)
    monkeypatch.setattr(Search, "singles", clears)
    found = search([])
    found.trial.blind = lambda target: False
    found.trial.looks = lambda piece, some, rows: []
    found.piece.target = 0
    assert found.explanations([], [], deep=True) == []


def test_bugs_of_one_module_and_of_the_first_token_are_not_tried_after_that(monkeypatch):
    found = search([])
    found.judged[NOTHING] = judged(0.5)
    found.narrow = [ONE]
    monkeypatch.setattr(Search, "look_at", fails)
    monkeypatch.setattr(Search, "alone", lambda self, atom: frozenset([atom]))
    assert found.in_one_module([ONE], early=False) == []
    monkeypatch.setattr(Search, "stage", lambda self, *given, **options: [])
    monkeypatch.setattr(Search, "distinct", lambda self, *given: [])
    monkeypatch.setattr(by_stages, "Segments", fails)
    assert found.first([NOTHING], []) == []
