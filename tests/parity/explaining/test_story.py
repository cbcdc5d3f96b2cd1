"""Bugs that were planted are named, all of them and nothing else. By law: we planted them."""

import numpy as np
import pytest

from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import explained, ids, port
from tests.proof.run.fitted import left_out
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

SPARSE, PLAIN = "gemma4/sparse", "models/untied_float32"
# Where each of the seven is, in a model of two layers of which the second sees everything.
SEVEN = {
    "embed-scale-missing": [],
    "act-silu-vs-gelu": [0, 1],
    "attn-scale-should-be-one": [0, 1],
    "rope-proportional-missing": [1],
    "moe-selects-lowest": [0, 1],
    "final-softcap-missing": [],
    "layer-scalar-missing": [0, 1],
}
ROUNDING = 2e-6


@pytest.fixture(scope="module")
def seven():
    return explained(SPARSE, port(SPARSE, [*SEVEN]))


def without(*names):
    return [fault for fault in catalogue() if fault.id not in names]


@long
def test_seven_bugs_are_named_from_one_dump(seven):
    assert seven.verdict == "faults"
    assert {fault.id: fault.layers for fault in seven.faults} == SEVEN
    assert len(seven.faults) == 7 and not seven.unexplained


@long
def test_what_is_said_of_them(seven):
    known = {fault.id: fault for fault in catalogue()}
    for fault in seven.faults:
        assert fault.fix == known[fault.id].fix
        assert fault.confidence == 0.99 and fault.also_fits == []
        assert fault.residual_before > 1e-2 > 1e-5 > fault.residual_after >= 0
        assert fault.residual_after < 2 * fault.noise
        assert fault.runner_up is None or fault.runner_up["id"] != fault.id
    softcap = next(fault for fault in seven.faults if fault.id == "final-softcap-missing")
    assert softcap.runner_up["residual"] > 100 * softcap.noise


@long
def test_the_counterfactuals_are_of_the_logits(seven):
    first, *singles, last = seven.counterfactual
    assert first["fixed"] == [] and first["logits_error"] > 0.1
    assert sorted(row["fixed"][0] for row in singles) == sorted(SEVEN)
    assert all(row["logits_error"] > 1e-3 for row in singles)  # six others are still there
    assert last["fixed"] == sorted(SEVEN)
    assert 0 < last["logits_error"] < ROUNDING


def test_the_counterfactual_of_one_bug_is_what_it_does_to_the_logits():
    right = port(PLAIN, level="logits")["logits"].astype(float)
    taps = port(PLAIN, ["norm-plus-one-missing"])
    found = explained(PLAIN, taps).counterfactual
    wrong = taps["logits"].astype(float)
    error = np.sqrt(np.mean((wrong - right) ** 2) / np.mean(right**2))
    assert [row["fixed"] for row in found] == [[], ["norm-plus-one-missing"]]
    assert found[0]["logits_error"] == pytest.approx(error, rel=1e-4)
    assert found[1]["logits_error"] < ROUNDING


@long
@pytest.mark.parametrize("level", ["layers", "logits"])
def test_a_bug_is_named_from_less(level):
    found = explained(PLAIN, port(PLAIN, ["norm-plus-one-missing"], level=level))
    assert ids(found) == {"norm-plus-one-missing"} and not found.unexplained
    assert found.faults[0].layers == [0, 1]


@long
@pytest.mark.parametrize("name", ["final-softcap-missing", "embed-scale-missing"])
def test_what_the_catalogue_does_not_know_is_unknown(name):
    """But for the numbers that would stand for it: a cap that is huge is one that is missing."""
    known = without(*left_out({name}))
    found = explained(SPARSE, port(SPARSE, [name]), known)
    assert found.verdict == "unknown" and found.faults == []
    assert len(found.unexplained) == 1 and found.unexplained[0].own_error > 0.1
    assert found.counterfactual == []


def test_what_another_entry_does_too_is_named_as_that():
    """A scalar that is left out is a gain of 1: the same computation by another name."""
    found = explained(
        SPARSE, port(SPARSE, ["layer-scalar-missing"]), without("layer-scalar-missing")
    )
    (fault,) = found.faults
    assert (fault.id, fault.variant) == ("strict-false-drops-tensors", "gains of 1")
    assert fault.residual_after < 2 * fault.noise


@long
def test_what_nothing_here_tells_apart_is_said():
    """Logits of 0: the head's matrix may be, or the norm before it, and both fit as well."""
    taps = port(PLAIN, ["strict-false-drops-tensors[matrices of 0]"], level="logits")
    assert not taps["logits"].any()
    (fault,) = explained(PLAIN, taps).faults
    assert "strict-false-drops-tensors" in {fault.id, *fault.also_fits}
    assert 0 < len(fault.also_fits) <= 4 and fault.id not in fault.also_fits
    assert fault.confidence == pytest.approx(0.99 / (1 + len(fault.also_fits)), abs=1e-3)


def test_more_dumped_values_tell_them_apart():
    taps = port(PLAIN, ["strict-false-drops-tensors[matrices of 0]"])
    (fault,) = explained(PLAIN, taps).faults
    assert (fault.id, fault.also_fits) == ("strict-false-drops-tensors", [])


@sampled(1, "layers-gemma4/sparse-layer-scalar-missing-0")
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(
    ("name", "bug"),
    [(PLAIN, "act-silu-vs-gelu[gelu (tanh) for silu]"), (SPARSE, "layer-scalar-missing")],
)
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_bug_of_one_layer_is_reported_for_that_layer(name, bug, layer, level):
    taps = port(name, [bug], level=level, where=lambda call: call.layer == layer)
    (fault,) = explained(name, taps).faults
    assert (fault.id, fault.layers) == (bug.partition("[")[0], [layer])
    assert all(f"layers.{layer}" in tap for tap in fault.taps)


def test_the_bugs_to_think_of_can_be_chosen():
    taps = port(PLAIN, ["norm-plus-one-missing"])
    only = [fault for fault in catalogue() if fault.id == "norm-plus-one-missing"]
    assert ids(explained(PLAIN, taps, only)) == {"norm-plus-one-missing"}
    assert explained(PLAIN, taps, ()).verdict == "unknown"
