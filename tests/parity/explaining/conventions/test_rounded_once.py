"""Logits in half precision, and nothing else: was it computed in, or rounded to at the end?"""

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.rounded_once import rounded_once
from lockstep.parity.explaining.steps.steps import read_passes
from tests.parity.explaining.ports import dumped, explained, ids, model_of, port
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

NAME = "models/untied_float32"
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@long
@pytest.mark.parametrize("half", HALVES)
def test_logits_that_alone_are_rounded_are_named(half):
    """By law: a port in float32 that rounds its logits and hands them out in float32."""
    taps = port(NAME, level="logits")
    found = explained(NAME, {tap: widened(one, half) for tap, one in taps.items()})
    assert ids(found) == {"logits-half-precision"} and found.dtype == "float32"
    assert found.faults[0].variant == f"in {half}" and found.conventions == []


@long
@pytest.mark.parametrize("half", HALVES)
def test_a_port_in_half_precision_is_clean_however_it_is_stored(half):
    taps = port(NAME, dtype=half, level="logits")
    found = explained(NAME, {tap: widened(one, half) for tap, one in taps.items()})
    assert (found.verdict, found.dtype) == ("clean", half)
    assert any("stored as float32" in line for line in found.conventions)


def widened(value, half):
    return value.astype(HALVES[half]).astype(np.float32)


@pytest.mark.parametrize("unseen", [True, False])
def test_tokens_that_prove_nothing_have_no_say(unseen):
    """By hand: half of the tokens have numbers that no rounding gives."""
    half = HALVES["bfloat16"]
    taps = {tap: one.astype(half) for tap, one in port(NAME, level="logits").items()}
    mark = np.arange(20)[None] % 2 == 0
    for one in taps.values():
        one[mark] = 3.0
    model, dump = model_of(NAME), dumped(taps, NAME)
    graph, sides = read_passes(model, dump, None, None)
    case = Case(model, graph, sides, "bfloat16", [])
    case.trial.unseen = dict.fromkeys(case.dumped, mark) if unseen else {}
    assert rounded_once(case) is unseen
