"""A right port whose numbers were printed is right, and its bugs have names. By law and by hand."""

import numpy as np
import pytest

from lockstep.parity.explaining.conventions.decimals import Decimals, Digits, written_with
from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

NAME = "models/untied_float32"
TEXTS = ["%.3f", "%.4f", "%.6f", "%.4g", "%.6g"]


def printed(taps, text):
    """Return what is read back from numbers that were printed."""
    once = np.vectorize(lambda number: np.float32(text % number), otypes=[np.float32])
    return {tap: once(value) for tap, value in taps.items()}


def is_told(found):
    return any("as after printing" in line for line in found.conventions)


@sampled(2, "%.4f-layers-models/untied_float32")
@pytest.mark.parametrize("name", [NAME, "gpt2/variant", "llama/mistral_window", "gemma4/effective"])
@pytest.mark.parametrize("level", ["taps", "modules", "layers", "logits"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_right_port_that_was_printed_is_right(text, level, name):
    found = explained(name, printed(port(name, level=level), text))
    assert found.verdict == "clean" and is_told(found)


@sampled(1)
@pytest.mark.parametrize("text", ["%.3f", "%.6g"])
@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("bug", ["attn-scale-missing", "rope-sign-flipped", "mask-causal-missing"])
def test_its_bugs_are_named_all_the_same(bug, level, text):
    found = explained(NAME, printed(port(NAME, [bug], level=level), text))
    assert ids(found) == {bug} and not found.unexplained


@sampled(1)
@pytest.mark.parametrize("tap", ["model.layers.1.self_attn.o_proj", "model.layers.0.mlp.up_proj"])
def test_what_is_off_by_more_than_was_rounded_off_stays_unknown(tap):
    taps = port(NAME)
    taps[tap] = taps[tap] + np.float32(0.003)
    found = explained(NAME, printed(taps, "%.3f"))
    assert tap in {one.tap for one in found.unexplained}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_was_not_printed_is_not_taken_for_it(dtype):
    found = explained(NAME, port(NAME, dtype=dtype))
    assert found.verdict == "clean" and not is_told(found)


@pytest.mark.parametrize("size", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_drawn_numbers_went_through_no_text(dtype, size):
    drawn = np.random.default_rng(3).normal(size=4000, scale=size).astype(dtype)
    assert written_with(drawn.astype(np.float32)) is None


@pytest.mark.parametrize(
    ("text", "store"), [("%.1f", Decimals(1)), ("%.5f", Decimals(5)), ("%.2g", Digits(2)),
                        ("%.5g", Digits(5))]
)  # fmt: skip
def test_which_text_it_was(text, store):
    drawn = np.random.default_rng(4).normal(size=400).astype(np.float32)
    assert written_with(printed({"": drawn}, text)[""]) == store


def test_few_numbers_and_those_that_are_none_tell_nothing():
    assert written_with(np.array([0.5] * 63 + [0.0, np.nan, np.inf], np.float32)) is None
    assert written_with(np.array([0.5] * 64 + [0.0, np.nan, np.inf], np.float32)) == Decimals(1)


def test_steps_by_hand():
    value = np.array([0.0123, -4.56, 789.0, 0.0, np.inf], np.float32)
    assert Digits(3).step(value)[:3] == pytest.approx([1e-4, 1e-2, 1.0])
    assert Digits(2).rounded(value)[:3] == pytest.approx([0.012, -4.6, 790.0])
    assert np.isinf(Digits(2).rounded(value)[4]) and Digits(2).rounded(value)[3] == 0
    assert Decimals(1).rounded(value)[:3] == pytest.approx([0.0, -4.6, 789.0])
