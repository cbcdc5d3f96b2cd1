"""A port that has no number for some tokens is explained by the others, and by what makes NaN."""

import numpy as np
import pytest

from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

long = sampled(2)  # of the proofs below that take seconds each

NAME = "models/untied_float32"
MADE = ["mask-polarity-inverted", "softmax-low-precision[in bfloat16]"]
NEAR = [one for one in catalogue() if one.family in ("mask", "attention")]


def named(bugs):
    return {bug.partition("[")[0] for bug in bugs}


@long
@pytest.mark.parametrize(("level", "known"), [("modules", None), ("layers", NEAR)])
def test_bugs_that_together_make_no_numbers_are_named(level, known):
    """By law: the last query sees nothing, and bfloat16 has no number as low as float32 has.

    From layers, where the search is long, they are named among those of their families.
    """
    dump = port(NAME, MADE, level=level)
    first = next(
        tap for tap in dump if tap.startswith("model.layers.0") and np.isnan(dump[tap]).any()
    )
    lost = np.isnan(dump[first]).any(axis=-1)[0]
    assert lost[-1] and not lost[:-1].any()
    found = explained(NAME, dump, known)
    assert ids(found) == named(MADE)


@long
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bugs_that_together_make_numbers_in_half_precision_make_them_in_float32_too(dtype):
    """By law: the port's lowest number is masked with, whatever a replay computes in."""
    dump = port(NAME, MADE, dtype=dtype)
    assert all(np.isfinite(value.astype(np.float32)).all() for value in dump.values())
    found = explained(NAME, dump, [one for one in catalogue() if one.id in named(MADE)])
    assert ids(found) == named(MADE) and found.unexplained == []
    assert found.counterfactual[-1]["logits_error"] < 0.05


@long
def test_no_numbers_that_no_bug_makes_are_not_explained_by_the_others():
    """By hand: the inverted mask alone gives numbers for every token."""
    dump = port(NAME, MADE[:1])
    dump["model.layers.0.self_attn.o_proj"][:, -1] = np.nan
    found = explained(NAME, dump)
    assert "model.layers.0.self_attn.o_proj" in {one.tap for one in found.unexplained}


@long
def test_what_is_computed_from_no_numbers_is_judged_by_the_others():
    """By law: a wrong activation behind an attention that has no number for one token."""
    (other,) = ["act-silu-vs-gelu[gelu (tanh) for silu]"]
    found = explained(NAME, port(NAME, [*MADE, other]))
    here = {one.id: one.layers for one in found.faults}
    assert here.keys() == named([*MADE, other])
    assert here["act-silu-vs-gelu"] == [0]  # behind it no token has any number
