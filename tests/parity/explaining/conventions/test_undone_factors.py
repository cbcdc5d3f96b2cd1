"""Factors that what follows undoes are conventions, and those that nothing undoes bugs. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.conventions.masked_scores import SAID
from lockstep.parity.explaining.conventions.undone_factors import GAINLESS, SCALED, WITH, WITHOUT
from tests.parity.explaining.ports import explained, ids, model_of, port

NAME, ROUTED = "models/untied_float32", "gemma4/sparse"
LOG2_E = np.float32(np.log2(np.e))


def scaled(bugs, *, dtype="float32", **factors):
    """Return a port's taps, those of some last names times a factor."""
    taps = port(NAME, bugs, level="taps", dtype=dtype)
    for tap in taps:
        if (last := tap.rpartition(".")[2]) in factors:
            taps[tap] = (taps[tap] * factors[last]).astype(taps[tap].dtype)
    return taps


def told(found, line):
    end = line.partition(": ")[2].partition("{factor:.3g} ")[2] or line.partition(": ")[2]
    return sum(end in said for said in found.conventions)


@pytest.mark.parametrize(
    ("dtype", "factors"),
    [
        ("float32", {"scores": LOG2_E}),  # whose softmax counts in powers of 2
        ("float32", {"q_norm": 0.25, "q_rope": 0.25}),  # the norm's gain has the scale in it
        ("bfloat16", {"q_norm": 0.25, "q_rope": 0.25}),
        ("float32", {"act_fn": -2.0}),  # and the up projection's rows are halved, the other way
    ],
)
def test_a_factor_that_what_follows_undoes_is_told(dtype, factors):
    found = explained(NAME, scaled([], dtype=dtype, **factors))
    assert (found.verdict, found.faults) == ("clean", []) and told(found, SCALED) == 1


@pytest.mark.parametrize("level", ["taps", "no scores"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("factors", "lines"),
    [
        ({"q_rope": 0.88, "k_rope": 0.88}, 1),  # YaRN's factor is in the scale of the scores
        ({"q_rope": 0.5, "k_rope": 4.0}, 2),
    ],
)
def test_so_are_two_that_one_value_undoes(factors, lines, dtype, level):
    taps = scaled([], dtype=dtype, **factors)
    if level == "no scores":
        taps = {tap: one for tap, one in taps.items() if not tap.endswith(("scores", "probs"))}
    found = explained(NAME, taps)
    assert (found.verdict, found.faults) == ("clean", []) and told(found, SCALED) == lines


@pytest.mark.parametrize("changed", [{"layer": 0}, {"scores": 0.88}, {"scores": 0.88**-2}])
def test_two_that_are_undone_otherwise_are_wrong(changed):
    """In one layer alone, or once or thrice where it is in there twice."""
    taps = scaled([], q_rope=0.88, k_rope=0.88)
    right = port(NAME, level="taps")
    for tap in taps:
        if f"layers.{changed.get('layer')}." in tap:
            taps[tap] = right[tap]
        elif tap.endswith("scores"):
            taps[tap] = taps[tap] * np.float32(changed.get("scores", 1))
    found = explained(NAME, taps, ())
    assert found.verdict == "unknown" and {"q_rope", "scores"} & {
        one.tap.rpartition(".")[2] for one in found.unexplained
    }


def test_so_is_one_of_scores_that_have_the_mask_on_them():
    taps = scaled([], scores=LOG2_E)
    for tap in (tap for tap in taps if tap.endswith(".scores")):
        length = taps[tap].shape[-1]
        taps[tap] = np.where(np.tri(length, dtype=bool), taps[tap], -np.inf).astype(np.float32)
    found = explained(NAME, taps)
    assert found.verdict == "clean" and told(found, SCALED) == told(found, SAID) == 1


def test_a_gain_that_is_folded_into_what_follows_is_told():
    taps = port(NAME, level="taps")
    for tap in (tap for tap in taps if tap.endswith("layernorm")):
        taps[tap] = taps[tap] / gain(tap)
    found = explained(NAME, taps)
    assert (found.verdict, found.faults) == ("clean", []) and told(found, GAINLESS) == 1


def gain(tap):
    return model_of(NAME).checkpoint.tensor(f"{tap}.weight").astype(np.float32)


@pytest.mark.parametrize("bug", ["attn-scale-twice", "norm-plus-one-twice", "attn-scale-missing"])
def test_what_nothing_undoes_is_a_bug(bug):
    found = explained(NAME, scaled([bug]))
    assert bug in ids(found) and not told(found, SCALED) and not told(found, GAINLESS)


def test_beside_a_bug_elsewhere_it_is_told():
    found = explained(NAME, scaled(["swiglu-gate-up-swapped"], scores=LOG2_E))
    assert ids(found) == {"swiglu-gate-up-swapped"} and not found.unexplained
    assert told(found, SCALED) == 1


def test_a_branch_times_a_factor_is_wrong():
    """It is added to the stream, which no factor can be folded into."""
    found = explained(NAME, scaled([], down_proj=2.0))
    assert found.verdict != "clean" and not told(found, SCALED)


def test_a_factor_in_one_layer_alone_is_wrong():
    taps = port(NAME, level="taps")
    taps["model.layers.1.self_attn.scores"] *= LOG2_E
    found = explained(NAME, taps)
    assert found.verdict == "unknown" and not told(found, SCALED)


def test_logits_times_a_factor_are_wrong():
    """Nothing follows them."""
    found = explained(NAME, scaled([], logits=3.0, lm_head=3.0))
    assert found.verdict != "clean" and not told(found, SCALED)


def routed(last, way, *, bugs=(), layers="", dtype="float32"):
    """Return the taps of a port with experts, those of a name in its routers changed."""
    taps = port(ROUTED, bugs, level="taps", dtype=dtype)
    for tap in taps:
        router, _, name = tap.rpartition(".")
        if name == last and router.endswith(f"{layers}.router"):
            taps[tap] = way(taps[tap].astype(np.float64), router).astype(taps[tap].dtype)
    return taps


def of_router(router, name):
    return model_of(ROUTED).checkpoint.tensor(f"{router}.{name}").astype(np.float64)


def unscaled(value, router):
    return value / of_router(router, "per_expert_scale")


def with_scale(value, router):
    return value * of_router(router, "scale")


def with_all(value, router):
    return with_scale(value, router) * value.shape[-1] ** -0.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("last", "way", "line"),
    [
        ("routing", unscaled, WITHOUT),  # llama.cpp scales what the experts give
        ("norm", with_all, WITH),  # mlx-lm's norm takes both for its gain
        ("norm", with_scale, WITH),
    ],
)
def test_a_routers_gains_are_taken_where_the_port_has_them(last, way, line, dtype):
    found = explained(ROUTED, routed(last, way, dtype=dtype))
    assert (found.verdict, found.faults) == ("clean", [])
    assert sum(line.partition("{gain}")[2] in said for said in found.conventions) == 1


@pytest.mark.parametrize(
    ("last", "way", "options"),
    [
        ("routing", unscaled, {"layers": "1"}),
        ("routing", lambda value, router: unscaled(unscaled(value, router), router), {}),
        ("routing", lambda value, router: unscaled(value, router) * 1.02, {}),
        ("norm", lambda value, router: with_all(with_all(value, router), router), {}),
        ("norm", lambda value, router: with_all(value, router)[..., ::-1], {}),
        ("norm", with_all, {"layers": "1"}),
    ],
)
def test_other_gains_are_none_of_theirs(last, way, options):
    found = explained(ROUTED, routed(last, way, **options), ())
    assert found.verdict == "unknown" and not any(" in it" in line for line in found.conventions)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bug", ["moe-per-expert-scale-missing", "moe-router-input-scale-missing"])
def test_a_routers_gain_that_is_nowhere_is_a_bug(bug, dtype):
    found = explained(ROUTED, routed("", None, bugs=[bug], dtype=dtype))
    assert bug in ids(found)
