"""Weights and activations in 8 bits or NF4, as other engines keep them: by law, loop and hand."""

from statistics import NormalDist

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.faults.eight_bits import FAULTS
from lockstep.parity.faults.scaled import (
    A_MATRIX,
    A_ROW,
    NF4,
    fp8,
    fp8_as_it_is,
    int8,
    largest_in,
    nf4,
)
from tests.parity.faults.planted import check_in_every_way, check_shows, variants, world

NAMES = ("models/sliding_bfloat16", "gemma4/sparse", "models/untied_float32")
RNG = np.random.default_rng(23)
WEIGHT = RNG.standard_normal((5, 64)).astype(np.float32)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, {})


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def test_what_is_packed_is_left_as_it_is():
    here = world("models/affine_4_64")
    for fault in FAULTS[:-1]:
        assert fault.convention
        for rewrite in fault.variants.values():
            for one in here.calls(rewrite).values():
                assert not here.graph.stored[one.tensor(1)].packed


@pytest.mark.parametrize("tile", [(1, None), (None, None), (2, 3), (128, 128), (3, None)])
def test_the_largest_of_a_tile_by_loop(tile):
    """The last tiles may be short."""
    high, wide = tile[0] or 5, tile[1] or 64
    found = largest_in(WEIGHT, tile)
    for row in range(5):
        for column in range(64):
            top, left = row // high * high, column // wide * wide
            assert found[row, column] == np.abs(
                WEIGHT[top : top + high, left : left + wide]
            ).max()  # fmt: skip


def test_whole_numbers_by_hand():
    """The largest of a row is 127 steps; of 127.5 it is cut to 127, and -127.5 is -128."""
    row = np.array([[127, -1, 0.5, 1.5]], np.float32)
    assert int8(row)[0].tolist() == [127, -1, 0, 2]
    half = np.array([[127.5, -127.5, 1, 0]], np.float32)
    assert int8(half, steps=127.5)[0].tolist() == [127, -128, 1, 0]


@pytest.mark.parametrize("tile", [A_ROW, A_MATRIX, (2, 16)])
def test_whole_numbers_are_the_nearest(tile):
    step = largest_in(WEIGHT, tile) / 127
    assert (np.abs(int8(WEIGHT, tile) - WEIGHT) <= step * 0.5001).all()


@pytest.mark.parametrize("tile", [A_ROW, A_MATRIX, (2, 16)])
def test_float8_is_that_of_ml_dtypes(tile):
    step = largest_in(WEIGHT, tile) / np.float32(448)
    theirs = (WEIGHT * (np.float32(1) / step)).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(fp8(WEIGHT, tile), theirs.astype(np.float32) * step)


def test_scales_that_are_held_in_bfloat16_are_rounded_to_it():
    step = (largest_in(WEIGHT, A_ROW) / np.float32(127)).astype(ml_dtypes.bfloat16)
    codes = int8(WEIGHT, held=ml_dtypes.bfloat16) / step.astype(np.float32)
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
    assert np.abs(codes).max() <= 128.001


def test_the_levels_of_nf4_are_quantiles_of_the_normal_distribution():
    """By law: eight of its upper half and seven of its lower, beside 0, over the largest."""
    normal, end = NormalDist(), 0.9677083
    upper = [normal.inv_cdf(p) for p in np.linspace(end, 0.5, 9)[:-1]]
    lower = [-normal.inv_cdf(p) for p in np.linspace(end, 0.5, 8)[:-1]]
    levels = np.sort([*upper, 0.0, *lower])
    np.testing.assert_allclose(levels / levels.max(), NF4, atol=2e-6)


def test_nf4_by_loop():
    """The nearest level, of 64 numbers to a scale in reading order, whatever the rows are."""
    weight = RNG.standard_normal((4, 32)).astype(np.float32)
    found, flat = nf4(weight).ravel(), weight.ravel()
    for start in range(0, 128, 64):
        block, scale = flat[start : start + 64], np.abs(flat[start : start + 64]).max()
        nearest = [NF4[np.abs(NF4 - one / scale).argmin()] * scale for one in block]
        np.testing.assert_allclose(found[start : start + 64], nearest, rtol=1e-6)


@pytest.mark.parametrize("change", [int8, fp8, nf4])
def test_noughts_stay(change):
    assert not change(np.zeros((2, 64), np.float32)).any()


def test_activations_are_rounded_token_by_token():
    """By loop over the tokens of a batch, before every product with a matrix."""
    here = world("models/untied_float32")
    fault = next(one for one in FAULTS if one.id == "activations-by-token")
    calls = here.calls(fault.variants["whole numbers"])
    assert {call.op for call in calls.values()} == {"linear"}
    change = next(iter(calls.values())).inputs[0].change
    x = RNG.standard_normal((2, 3, 16)).astype(np.float32)
    found = change(None, x)
    for row in range(2):
        for token in range(3):
            np.testing.assert_array_equal(found[row, token], int8(x[row, token][None])[0])


def test_float8_without_a_scale_by_witness():
    """What ml_dtypes rounds to; nothing here is beyond its largest number."""
    some = np.concatenate([WEIGHT, 1e-3 * WEIGHT, 100 * WEIGHT])
    expected = some.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(fp8_as_it_is(some), expected)


def test_whole_numbers_that_were_divided_by_loop():
    found = int8(WEIGHT, divided=True)
    for row, rounded in zip(WEIGHT, found, strict=True):
        step = np.float32(np.abs(row).max() / np.float32(127))
        for one, other in zip(row, rounded, strict=True):
            assert other == np.float32(np.rint(one / step)) * step
    assert not int8(np.zeros((1, 4)), divided=True).any()
