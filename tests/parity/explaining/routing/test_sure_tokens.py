"""Where most tokens depend on a near choice, the others are judged first. By hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.judging.judge import Judgement

RIGHT = Judgement(0.1, 0.1, 1.0, 1.0, 1.0, True, None)
WRONG = replace(RIGHT, passed=False)
A_BUG: Any = {3: None}
TWENTY = np.arange(20)[None]


def judged(
    sure: Judgement, calls: Any, *, unsure: int = 12, settled: bool = False, several: bool = False
) -> tuple[Any, int]:
    """Return what comes of a piece, and how often choices were looked for."""
    asked: list[int] = []
    steering = SimpleNamespace(
        count=5, settle=lambda: asked.append(1) or (TWENTY if settled else None)
    )
    trial: Any = SimpleNamespace(
        count=0,
        graph=SimpleNamespace(several=lambda piece: several),
        replayed=lambda piece, calls: (None, []),
        judge_sure=lambda *given: sure,
        steering=lambda *given: steering,
        steered=lambda *given: "by choices",
    )
    found = Trial.judge_by_choices(trial, None, calls, unsure > TWENTY)  # pyright: ignore[reportArgumentType]
    return found, len(asked)


def test_no_choice_helps_a_bug_that_tokens_without_one_speak_against():
    assert judged(WRONG, A_BUG) == (WRONG, 0)


@pytest.mark.parametrize("more", [{"calls": {}}, {"several": True}, {"unsure": 20}])
def test_choices_are_looked_for_where_those_tokens_do_not_say_that(more):
    """Right arithmetic is asked but once; in several layers a token sees others' choices."""
    given = {"calls": A_BUG, "settled": True} | more
    assert judged(WRONG, **given) == ("by choices", 1)


@pytest.mark.parametrize(
    ("calls", "unsure", "found"),
    [(A_BUG, 13, RIGHT), (A_BUG, 14, WRONG), ({}, 13, WRONG)],  # fourteen are more than two thirds
)
def test_where_no_choices_are_found_those_tokens_speak_for_a_bug_if_they_are_not_few(
    calls, unsure, found
):
    assert judged(RIGHT, calls, unsure=unsure) == (found, 1)


def test_where_choices_are_found_they_decide():
    assert judged(RIGHT, A_BUG, settled=True) == ("by choices", 1)
