"""Blocks and groups read wrongly in more ways: code by code in float64, by formula, by law."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.parity.faults import code_values, misread
from lockstep.parity.faults.packing import affine, q4_0, q8_0
from lockstep.parity.faults.tensors import dense
from lockstep.reference import ops
from tests.parity.faults.test_quantisation import WEIGHT, block, by_code, changed


@pytest.mark.parametrize("run", [16, 128])
def test_q4_k_by_other_runs_by_loop(run):
    _, found, octets = changed("Q4_K", misread.by_runs(run))
    for n, row in enumerate(octets):
        step, low = (float(one) for one in row[:4].view("<f2"))
        scales, minima = six_bits(row)
        for i in range(256):
            byte = int(row[16 + i // (2 * run) * run + i % run])
            code = byte >> 4 if i // run % 2 else byte & 15
            assert found[n, i] == step * scales[i // 32] * code - low * minima[i // 32]


def six_bits(row: np.ndarray) -> tuple[list[int], list[int]]:
    packed = [int(one) for one in row[4:16]]
    scales = [one & 63 for one in packed[:4]]
    scales += [packed[8 + n] & 15 | packed[n] >> 6 << 4 for n in range(4)]
    minima = [one & 63 for one in packed[4:8]]
    minima += [packed[8 + n] >> 4 | packed[4 + n] >> 6 << 4 for n in range(4)]
    return scales, minima


def test_scales_taken_for_minima_by_loop():
    _, found, octets = changed("Q4_K", misread.scales_for_minima)
    for n, row in enumerate(octets):
        step, low = (float(one) for one in row[:4].view("<f2"))
        minima, scales = six_bits(row)
        for i in range(256):
            code = int(row[16 + i // 64 * 32 + i % 32]) >> 4 * (i // 32 % 2) & 15
            assert found[n, i] == step * scales[i // 32] * code - low * minima[i // 32]


@pytest.mark.parametrize("nought", [7, 9])
def test_q4_0_around_another_nought_by_law(nought):
    """Every weight is off by one step of its block."""
    tensor = q4_0(WEIGHT)
    right, found = (
        dense(ops, one, np.float64).reshape(-1, 32)
        for one in (tensor, misread.q4_around(nought)(ops, tensor))
    )
    steps = tensor.blocks.reshape(-1, 18)[:, :2].copy().view("<f2").astype(float)
    np.testing.assert_allclose(found, right + (8 - nought) * steps, rtol=1e-6, atol=1e-7)


def test_q8_0_less_128_by_formula():
    tensor = q8_0(WEIGHT)
    blocks = tensor.blocks.reshape(-1, 34)
    expected = blocks[:, :2].copy().view("<f2").astype(float) * (blocks[:, 2:].astype(float) - 128)
    found = dense(ops, misread.q8_less_128(ops, tensor), np.float64).reshape(-1, 32)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def codes_of_q6(row: np.ndarray) -> list[int]:
    found = []
    for i in range(256):
        half, at = divmod(i, 128)
        low = int(row[64 * half + at % 64]) >> 4 * (at // 64) & 15
        found.append(low | (int(row[128 + 32 * half + at % 32]) >> 2 * (at // 32) & 3) << 4)
    return found


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (misread.q6_moved(1), lambda scale, code: scale * (code - 31)),
        (misread.q6_moved(-1), lambda scale, code: scale * (code - 33)),
        (misread.q6_unsigned_scales, lambda scale, code: scale % 256 * (code - 32)),
    ],
)
def test_q6_k_by_loop(change, value):
    tensor = block("Q6_K")
    found = np.asarray(change(ops, tensor), np.float64).reshape(2, -1)
    for n, row in enumerate(tensor.blocks.reshape(2, -1)):
        step, scales = float(row[208:].view("<f2")[0]), row[192:208].view(np.int8)
        expected = [value(int(scales[i // 16]), q) for i, q in enumerate(codes_of_q6(row))]
        np.testing.assert_allclose(found[n], step * np.array(expected), rtol=1e-6)


@pytest.mark.parametrize("kind", misread.STEPS)
def test_every_step_taken_for_bfloat16_by_law(kind):
    """By law: where both floats of a block are one, so is what either of its bits is worth."""
    tensor = block(kind)
    octets = tensor.blocks.reshape(2, -1).copy()
    places = [misread.STEPS[kind], *([misread.MINIMA[kind]] if kind in misread.MINIMA else [])]
    for place in places:
        octets[:, place : place + 2] = np.array([0.375], "<f2").view(np.uint8)
    tensor = replace(tensor, blocks=octets.reshape(1, -1))
    bits = int(np.array([0.375], "<f2").view("<u2")[0])
    worth = float(np.array([bits << 16], np.uint32).view(np.float32)[0])
    found = dense(ops, misread.bfloat16_step(ops, tensor), np.float64)
    right = dense(ops, tensor, np.float64)
    np.testing.assert_allclose(found, right * worth / 0.375, rtol=1e-5, atol=1e-6 * worth)


def test_a_bias_that_is_added_twice_by_formula():
    packed = affine(WEIGHT, bits=4, group_size=32)
    found = dense(ops, code_values.biased(2)(ops, packed), np.float64)
    expected = by_code(packed, lambda s, b, q, k: s * q + 2 * b)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
