"""What llama.cpp rounds on purpose: by hand, by loop, and on small models.

That it is what llama.cpp does is tested on its own runs, in tests/peers/test_capture_llama_cpp.py.
"""

import math
import struct

import numpy as np
import pytest

from lockstep.parity.faults.llama_cpp import (
    FAULTS,
    TABLES,
    by_rounded_sums,
    in_blocks_of_32,
    in_blocks_of_256,
    sums_of_32,
)
from lockstep.reference import ops
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from tests.parity.faults.planted import check_in_every_way, check_shows, variants

NAMES = (
    "gguf/qwen3_mixed.gguf", "gguf/qwen2_biased.gguf", "gpt2/original", "models/biased_float16",
    "models/tied_bfloat16",
)  # fmt: skip
# None of these has experts; a peers test runs llama.cpp's own.
HIDDEN = {
    f"gelu-from-a-table[in experts, beside {size} to a scale]": "experts packed throughout"
    for size in (32, 256)
}


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, HIDDEN)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def test_they_are_conventions():
    assert all(fault.convention for fault in FAULTS)


def test_sums_of_blocks_by_hand():
    """127 + 2 - 4 codes of a step of 1; 127 + 3 codes of a step of 0.1, 13.0 in float16."""
    x = np.zeros((1, 64), np.float32)
    x[0, :4] = 127, 2.5, -3.5, 0.4
    x[0, 32:34] = 12.7, 0.32
    np.testing.assert_array_equal(sums_of_32(x), [[125, float(np.float16(13.0))]])
    x[0, 1:3] = 12.345, -3.6  # 127 + 12 - 4 codes; 41.3 times the step, float16 has multiples of 4
    np.testing.assert_array_equal(sums_of_32(np.float32(41.3) * x)[0, 0], 5576)


def test_a_product_with_least_values_by_loop():
    """One row of two Q4_1 blocks: codes 0 to 15 twice, a step of 0.5, least values -3 and 2."""
    codes = np.tile(np.arange(16, dtype=np.uint8), 2)
    raw = [
        struct.pack("<ee", 0.5, least) + bytes(codes[:16] | codes[16:] << 4) for least in (-3, 2)
    ]
    weight = BlockTensor(np.frombuffer(b"".join(raw), np.uint8)[None], "Q4_1")
    x = np.random.default_rng(3).standard_normal((2, 64)).astype(np.float32)
    packed, sums, expected = in_blocks_of_32(ops, x), sums_of_32(x), np.zeros((2, 1))
    for row in range(2):
        for block, least in enumerate((-3.0, 2.0)):
            for place in range(32):
                expected[row, 0] += 0.5 * codes[place] * packed[row, 32 * block + place]
            expected[row, 0] += least * sums[row, block]
    np.testing.assert_allclose(by_rounded_sums(ops, x, weight, None), expected, rtol=1e-5)
    assert np.abs(ops.linear(packed, weight, None) - expected).max() > 1e-3


def test_blocks_of_32_by_hand():
    """The largest is 127 steps of one block; 2.5 steps go to the even 2; steps are float16."""
    x = np.zeros((1, 64), np.float32)
    x[0, :4] = 127, 2.5, -3.5, 0.4
    x[0, 32:34] = 12.7, 0.32
    step = float(np.float16(0.1))
    expected = np.zeros((1, 64))
    expected[0, :4] = 127, 2, -4, 0
    expected[0, 32:34] = 127 * step, 3 * step
    found = in_blocks_of_32(ops, x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    assert not in_blocks_of_32(ops, np.zeros((2, 32), np.float32)).any()


def test_blocks_of_256_by_loop():
    x = np.random.default_rng(1).normal(size=(3, 512)).astype(np.float32)
    found = in_blocks_of_256(ops, x)
    for row in range(3):
        for begin in (0, 256):
            block = x[row, begin : begin + 256].tolist()
            largest = max(block, key=abs)
            for place, value in enumerate(block):
                step = -largest / 127
                assert abs(found[row, begin + place] - value) <= abs(step) * (0.5 + 1e-5)
                code = found[row, begin + place] / step
                assert abs(code - round(code)) < 1e-4
    assert not in_blocks_of_256(ops, np.zeros((2, 256), np.float32)).any()


@pytest.mark.parametrize("name", TABLES)
def test_the_table_is_gelu_to_eleven_bits(name):
    """By loop, with Python's own tanh and its packing of float16."""
    x = np.linspace(-9.9, 9.9, 397).astype(np.float32)
    for value, found in zip(x.tolist(), TABLES[name](ops, x).tolist(), strict=True):
        key = half(value)
        bent = math.sqrt(2 / math.pi) * key * (1 + 0.044715 * key * key)
        expected = 0.5 * key * (1 + math.tanh(bent))
        assert found == half(found)
        assert abs(found - expected) <= abs(expected) * 2**-11 + 2e-6


def half(value: float) -> float:
    return struct.unpack("<e", struct.pack("<e", value))[0]


@pytest.mark.parametrize("name", TABLES)
def test_beyond_ten_the_table_is_not_asked(name):
    x = np.array([-1e6, -10, 10, 12.3456789, 1e6], np.float32)
    assert TABLES[name](ops, x).tolist() == [0, 0, *x[2:].tolist()]
