"""Where most tokens depend on a near choice, the others are judged first. By hand."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.judging.judge import Judgement

RIGHT = Judgement(0.1, 0.1, 1.0, 1.0, 1.0, True, None)
WRONG = replace(RIGHT, passed=False)
EVERY_TOKEN = replace(WRONG, own_error=0.9)  # as they are judged together
A_BUG: Any = {3: None}
TWENTY = np.arange(20)[None]


def judged(
    sure: Judgement,
    calls: Any,
    *,
    without: Judgement = WRONG,
    unsure: int = 12,
    settled: bool = False,
    several: bool = False,
) -> tuple[Any, int]:
    """Return what comes of a piece, and how often choices were looked for.

    `sure` is the judgement of the sure tokens with the calls, `without` that with none.
    """
    asked: list[int] = []
    steering = SimpleNamespace(
        count=5, settle=lambda: asked.append(1) or (TWENTY if settled else None)
    )
    trial: Any = SimpleNamespace(
        count=0,
        graph=SimpleNamespace(several=lambda piece: several),
        replayed=lambda piece, calls: (calls, []),
        judge_sure=lambda piece, calls, spread, some: (
            EVERY_TOKEN if some is None else sure if calls else without
        ),
        steering=lambda *given: steering,
        steered=lambda *given: "by choices",
    )
    trial.is_off = partial(Trial.is_off, trial)
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
    "more, found",
    [
        ({"unsure": 13}, RIGHT),
        ({"unsure": 14}, EVERY_TOKEN),  # more than two thirds
        (
            {"unsure": 13, "without": RIGHT},
            EVERY_TOKEN,
        ),  # without it they are right too
        ({"unsure": 13, "several": True}, EVERY_TOKEN),
        ({"unsure": 13, "calls": {}}, EVERY_TOKEN),  # the figures of an alarm are those of all
    ],
)
def test_where_no_choices_are_found_those_tokens_speak_for_a_bug_if_they_can(more, found):
    assert judged(RIGHT, **({"calls": A_BUG} | more)) == (found, 1)


def test_where_choices_are_found_they_decide():
    assert judged(RIGHT, A_BUG, settled=True) == ("by choices", 1)
