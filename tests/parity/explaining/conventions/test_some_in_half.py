"""Tensors that a file alone rounds are no error of a float32 port; those it goes on with are."""

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.explain import explain
from tests.parity.explaining.ports import dumped, explained, ids, model_of, port, some_of
from tests.sampled import sampled

NAME = "models/untied_float32"
HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TOLD = "{count} of the float32 port's tensors hold {half}, '{first}' first"
WITHIN = {"modules": ".mlp.", "layers": "layers.0"}


def stored(taps, part, half="float16"):
    """Store the tensors of which the name has a part in half precision."""
    kind = HALVES[half]
    return {tap: value.astype(kind) if part in tap else value for tap, value in taps.items()}


def rounding(module, half):
    """Return the bug of a port that goes on with a module's output in half precision."""

    def in_half(ops, x):
        return x.astype(HALVES[half]).astype(x.dtype)

    def rewrite(call, graph):
        return call.followed(in_half) if call.place == module else None

    return rewrite


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("level", WITHIN)
def test_what_the_file_alone_rounds_is_no_error(level, half):
    """By law: what is stored is what a right port has, rounded once."""
    taps = stored(port(NAME, level=level), WITHIN[level], half)
    names = [tap for tap in taps if WITHIN[level] in tap]
    found = explained(NAME, taps)
    assert (found.verdict, found.dtype) == ("clean", "float32")
    said = TOLD.format(count=len(names), half=half, first=names[0])
    assert any(line.startswith(said) for line in found.conventions), found.conventions


def widened(taps):
    return {tap: value.astype(np.float32) for tap, value in taps.items()}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("part", ["mlp.gate_proj", "self_attn.q_proj"])
def test_values_of_every_layer_say_so_where_the_file_has_them_as_float32_again(part, half):
    """By law: every number is one of half precision, and what follows is made of finer ones."""
    right = port(NAME)
    found = explained(NAME, widened(stored(right, part, half)))
    assert found.verdict == "clean"
    count = sum(part in tap for tap in right)
    said = TOLD.format(count=count, half=half, first=f"model.layers.0.{part}")
    assert any(line.startswith(said) for line in found.conventions), found.conventions
    alone = explained(NAME, widened(stored(right, f"layers.1.{part}", half)))
    assert alone.verdict != "clean"  # in one layer alone it may be anything
    wrong = explained(NAME, widened(stored(port(NAME, ["residual-counted-twice"]), part, half)))
    assert ids(wrong) == {"residual-counted-twice"} and not wrong.unexplained


@pytest.mark.parametrize("half", HALVES)
def test_what_is_gone_on_with_is_no_matter_of_the_file_s_there_either(half):
    """By law: what follows is right. Of logits nothing is made."""
    found = explained(NAME, port(NAME, [rounding("mlp.gate_proj", half)]))
    assert found.verdict != "clean"
    logits = explained(NAME, widened(stored(port(NAME, level="layers"), "logits", half)))
    assert ids(logits) == {"logits-half-precision"}


@pytest.mark.parametrize("half", HALVES)
def test_logits_alone_may_be_in_half_precision_themselves(half):
    """By law: nothing is made of them that would tell."""
    found = explained(NAME, stored(port(NAME, level="layers"), "logits", half))
    assert ids(found) == {"logits-half-precision"}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("widened", [False, True])
def test_nor_is_it_where_the_dump_says_in_what_it_was_computed(widened, level, half):
    """By law: all tensors are rounded, whether the file says so or has them as float32 again."""
    taps = stored(port(NAME, level=level), "", half)
    taps = {tap: value.astype(np.float32) if widened else value for tap, value in taps.items()}
    found = explain(model_of(NAME), dumped(taps, NAME, dtype="float32"))
    assert (found.verdict, found.dtype) == ("clean", "float32")
    assert any("was rounded off when they were stored" in line for line in found.conventions)


@sampled(0)
@pytest.mark.parametrize("half", HALVES)
def test_a_port_that_computes_in_half_precision_and_says_another_is_told(half):
    """By law: its sums are those of what it dumped, to the bit."""
    found = explain(model_of(NAME), dumped(port(NAME, dtype=half), NAME, dtype="float32"))
    assert found.verdict != "clean"


@sampled(1)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("module", ["mlp.gate_proj", "self_attn.o_proj"])
def test_a_port_that_goes_on_with_what_it_rounded_is_not_excused(module, half):
    """By law: the tensor behind it is that of the rounded one, to float32."""
    taps = stored(port(NAME, [rounding(module, half)]), module, half)
    found = explained(NAME, taps)
    assert found.verdict != "clean" and not any(
        "port's tensors" in one for one in found.conventions
    )


@sampled(1)
@pytest.mark.parametrize("bug", ["attn-scale-missing", "rms-eps-wrong"])
def test_its_bugs_are_named_all_the_same(bug):
    found = explained(NAME, stored(port(NAME, [bug]), ".mlp."))
    assert ids(found) == {bug} and not found.unexplained


@pytest.mark.parametrize("tap", ["model.layers.1.mlp.up_proj", "model.layers.0.mlp.down_proj"])
def test_what_is_off_by_more_than_was_rounded_off_stays_unknown(tap):
    taps = port(NAME)
    taps[tap] = taps[tap] * np.float32(1 + 2.0**-8)
    found = explained(NAME, stored(taps, ".mlp."))
    assert tap in {one.tap for one in found.unexplained}


def test_a_dump_of_some_tokens_is_read_so_too():
    some = some_of(NAME)
    taps = stored({tap: some.read(tap) for tap in some.shapes}, ".mlp.")
    found = explain(model_of(NAME), dumped(taps, NAME, positions=some.about["positions"]))
    assert found.verdict == "clean"
