"""MODEL's own weights packed by another's hand: by law, by hand, and on small models."""

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.faults.other_quantisation import FAULTS, cut_off
from lockstep.parity.faults.packing import affine, codes_of, minifloat, q4_0, q8_0
from lockstep.parity.faults.tensors import dense
from lockstep.reference import ops
from lockstep.reference.ops.dequantize_minifloat import ELEMENTS
from tests.parity.faults.planted import check_in_every_way, check_shows, variants, world

NAMES = (
    "models/sliding_bfloat16",
    "gemma4/sparse",
    "models/untied_float32",
    "gguf/qwen2_biased.gguf",
)
WEIGHT = np.random.default_rng(19).standard_normal((5, 128)).astype(np.float32)
BITS = (2, 3, 4, 5, 6, 8)
FORMS = ("matrices alone", "all but norms", "everything")


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, {})


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def test_what_is_packed_is_not_packed_again():
    """By law: MODEL's packed matrices are taken as they are."""
    here = world("models/affine_4_64")
    for fault in FAULTS:
        assert fault.convention
        dense_ones = {name: one for name, one in fault.variants.items() if "unpacked" not in name}
        for rewrite in dense_ones.values():
            for one in here.calls(rewrite).values():
                assert not here.graph.stored[one.tensor(1)].packed


@pytest.mark.parametrize(("half", "other"), [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_what_is_stored_in_a_half_is_not_rounded_to_it(half, other):
    """By law: a port that keeps a bfloat16 file's numbers in bfloat16 loses nothing."""
    here = world("models/sliding_bfloat16" if half == "bfloat16" else "models/biased_float16")
    entries = {fault.id: fault for fault in FAULTS}
    for name in FORMS:
        assert not here.calls(entries[f"port-quantised-{half}"].variants[name])
        assert here.calls(entries[f"port-quantised-{other}"].variants[name])


def test_what_is_cut_off_is_rounded_towards_nought():
    """By hand: 1 + 2^-7 + 2^-8 is between two numbers of bfloat16, and nearer to neither."""
    found = cut_off(np.array([1 + 3 * 2.0**-8, -1 - 3 * 2.0**-8, 1.5, 0.0], np.float32))
    assert found.tolist() == [1 + 2.0**-7, -1 - 2.0**-7, 1.5, 0.0]
    rounded = WEIGHT.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert (np.abs(cut_off(WEIGHT)) <= np.abs(WEIGHT)).all()
    assert (np.abs(cut_off(WEIGHT) - WEIGHT) >= np.abs(rounded - WEIGHT)).all()


@pytest.mark.parametrize(
    ("name", "matrices", "biases", "norms"),
    [
        ("models/untied_float32", {("embedding", 1), ("linear", 1)}, set(), {("rms_norm", 1)}),
        (
            "gpt2/original",
            {("embedding", 1), ("linear", 1)},
            {("linear", 2)},
            {("layer_norm", 1), ("layer_norm", 2)},
        ),
    ],
)
def test_biases_and_norms_are_rounded_in_their_variants_alone(name, matrices, biases, norms):
    here = world(name)
    entry = next(fault for fault in FAULTS if fault.id == "port-quantised-bfloat16")
    found = [changed_in(here, entry.variants[form]) for form in FORMS]
    assert found == [matrices, matrices | biases, matrices | biases | norms]


def changed_in(here, rewrite):
    """Return the operations and the places of their inputs that a rewrite changes."""
    return {
        (one.op, index)
        for number, one in here.calls(rewrite).items()
        for index, ref in enumerate(one.inputs)
        if ref is not here.graph.calls[number].inputs[index]
    }


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_affine_packs_to_the_nearest_code(bits, group_size):
    """By law: nothing is farther off than half a step, but what lies beyond the grid's end."""
    packed = affine(WEIGHT, bits=bits, group_size=group_size)
    error = np.abs(dense(ops, packed, np.float64) - WEIGHT).reshape(5, -1, group_size)
    steps = np.abs(packed.scales)[..., None]
    inside = (codes_of(packed) < 2**bits - 1).reshape(error.shape)
    assert (error[inside] <= (steps * 0.5001 + np.zeros_like(error))[inside]).all()
    assert (error <= 1.01 * steps).all()


def test_affine_by_hand():
    """From -4 to 3.5 in 15 steps of 0.5: -4 is the farther edge, at code 0."""
    row = np.tile(np.array([-4, 3.5, -1, 0], np.float32), 8)[None]
    packed = affine(row, bits=4, group_size=32)
    assert (packed.scales.tolist(), packed.biases.tolist()) == ([[0.5]], [[-4.0]])
    assert codes_of(packed)[0, :4].tolist() == [0, 15, 6, 8]


def test_scales_are_kept_in_the_dtype_of_the_weight():
    packed = affine(WEIGHT.astype(ml_dtypes.bfloat16), bits=4, group_size=64)
    assert packed.scales.dtype == packed.biases.dtype == ml_dtypes.bfloat16


def test_a_group_of_zeros():
    zeros = np.zeros((1, 64), np.float32)
    for pack in (q8_0, q4_0, lambda row: affine(row, bits=4, group_size=32),
                 lambda row: minifloat(row, mode="mxfp4", to_even=True)):  # fmt: skip
        np.testing.assert_array_equal(dense(ops, pack(zeros)), zeros)


def test_ties_by_hand():
    """0.75 lies between 0.5 and 1, whose code 2 is even; 2.5 between 2, code 4, and 3."""
    row = np.zeros((1, 32), np.float32)
    row[0, :4] = 0.75, -2.5, 5, 6
    for to_even, expected in ((True, [1, -2, 4, 6]), (False, [0.5, -2, 4, 6])):
        packed = minifloat(row, mode="mxfp4", to_even=to_even)
        assert dense(ops, packed)[0, :4].tolist() == expected


@pytest.mark.parametrize("to_even", [True, False])
@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8"])
def test_tiny_floats_pack_to_the_nearest(mode, to_even):
    """By loop: no other code of the mode is nearer, at the scale that the group has."""
    packed = minifloat(WEIGHT, mode=mode, to_even=to_even)
    levels = ELEMENTS[mode][np.isfinite(ELEMENTS[mode])]
    found, steps = dense(ops, packed, np.float64), 2.0 ** (packed.scales.astype(float) - 127)
    for n in range(2):
        for k in range(0, 128, 7):
            nearest = np.abs(levels * steps[n, k // 32] - WEIGHT[n, k]).min()
            assert abs(found[n, k] - WEIGHT[n, k]) == pytest.approx(nearest, abs=1e-12)


def test_the_largest_of_a_group_is_within_reach():
    """By law: the power of two is the smallest by which the largest number has a code."""
    packed = minifloat(WEIGHT, mode="mxfp4", to_even=True)
    largest = np.abs(WEIGHT).reshape(5, -1, 32).max(axis=-1)
    reach = 6 * 2.0 ** (packed.scales.astype(float) - 127)
    assert ((largest <= reach) & (largest > reach / 2)).all()


def test_blocks_by_hand():
    """Q8_0: the largest is 127. Q4_0: the largest, here -4, is code 0, that is -8 steps."""
    row = np.zeros((1, 32), np.float32)
    row[0, :3] = 127, -1, 0.5
    assert dense(ops, q8_0(row))[0, :4].tolist() == [127, -1, 1, 0]
    row[0, :3] = -4, 1, 3.5
    found = q4_0(row)
    assert found.blocks[0, 2] & 15 == 0
    assert dense(ops, found)[0, :4].tolist() == [-4, 1, 3.5, 0]


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_packed_matrices_that_a_port_unpacks_to_a_half_are_rounded_to_it(half):
    here = world("models/affine_4_64")
    entry = next(fault for fault in FAULTS if fault.id == f"port-quantised-{half}")
    calls = here.calls(entry.variants["packed ones, unpacked"])
    assert {one.op for one in calls.values()} == {"embedding", "linear"}
    one = next(call for call in calls.values() if call.op == "linear")
    packed = here.read(one.inputs[1].sources[0])
    found = one.inputs[1].change(ops, packed)
    np.testing.assert_array_equal(found, dense(ops, packed).astype(getattr(ml_dtypes, half, half)))
