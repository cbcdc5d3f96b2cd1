"""A float32 run whose every tap was stored in half precision is right, and its bugs have names."""

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.explaining.conventions.rounded_when_stored import STORED, Half
from lockstep.parity.explaining.conventions.stored import finer
from tests.parity.explaining.ports import explained, ids, model_of, port, prompt
from tests.sampled import sampled

NAME = "models/untied_float32"
HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def every_tap(name, length=20):
    """Of scores and probabilities too, which the modules of a port do not show."""
    taps, model = {}, model_of(name)
    model.forward(prompt(model, length), trace=lambda tap, value: taps.update({tap: value}))
    return taps


def stored(taps, half):
    return {tap: np.asarray(value).astype(HALVES[half]) for tap, value in taps.items()}


@sampled(1, "gemma4/effective-bfloat16")
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", [NAME, "gpt2/variant", "llama/mistral_window", "gemma4/effective"])
def test_a_float32_run_that_was_rounded_when_stored_is_clean(name, half):
    """By law: what is rounded, and nothing else, is no bug."""
    found = explained(name, stored(every_tap(name), half))
    assert (found.verdict, found.dtype) == ("clean", half)
    assert STORED.format(dtype=half) in found.conventions


@pytest.mark.parametrize("half", HALVES)
def test_modules_alone_say_so_too_where_a_layer_scales_its_sum(half):
    found = explained("gemma4/sparse", stored(port("gemma4/sparse"), half))
    assert found.verdict == "clean"


@sampled(0)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("bug", ["attn-scale-missing", "rope-sign-flipped"])
def test_its_bugs_are_named_all_the_same(bug, half):
    found = explained(NAME, stored(port(NAME, [bug]), half))
    assert ids(found) == {bug} and not found.unexplained


@sampled(0)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("tap", ["model.layers.1.self_attn.probs", "model.layers.0.mlp.up_proj"])
def test_what_is_off_by_more_than_was_rounded_off_stays_unknown(tap, half):
    taps = every_tap(NAME)
    step = 2.0**-7 if half == "bfloat16" else 2.0**-10
    taps[tap] = taps[tap] * (1 + 2 * step)
    found = explained(NAME, stored(taps, half))
    assert tap in {one.tap for one in found.unexplained}


@sampled(1)
@pytest.mark.parametrize("half", HALVES)
def test_a_port_in_half_precision_is_never_excused_so(half):
    """Its sums are those of what it dumped, to the bit, right or wrong as the rest may be."""
    taps = port(NAME, dtype=half)
    taps["model.layers.0.mlp.up_proj"] = taps["model.layers.0.mlp.up_proj"] * HALVES[half].type(1.1)
    found = explained(NAME, taps)
    assert found.verdict != "clean" and STORED.format(dtype=half) not in found.conventions


@pytest.mark.parametrize("half", HALVES)
def test_what_was_rounded_off_is_at_most_half_a_step(half):
    """By hand: of 1 to 2 the step is that of the dtype; what it cannot hold was not rounded."""
    step = 2.0**-7 if half == "bfloat16" else 2.0**-10
    there = np.array([1.5] * 1000, np.float32)
    moved = finer(there, Half(HALVES[half]), np.random.default_rng(0)) - there
    assert 0.45 * step < np.abs(moved).max() <= 0.5 * step
    assert abs(moved.mean()) < 0.05 * step
    stays = np.array([0.0, np.inf, np.nan, 1 + 2.0**-20], np.float32)
    same = finer(stays, Half(HALVES[half]), np.random.default_rng(0))
    assert np.array_equal(same, stays, equal_nan=True)
