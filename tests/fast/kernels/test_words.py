"""The largest codes with the largest digits: what has least room where two products make a word.

On a processor that adds four up, the same is held of that.
"""

import numpy as np
import pytest

from lockstep.fast.kernels import kernel, tile
from lockstep.fast.kernels import product as products
from lockstep.fast.kernels.tile import possible
from lockstep.fast.kernels.words import WORD, parts_of
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from tests.fast.kernels.test_product import pack
from tests.ops_backends import DTYPES
from tests.sampled import sampled
from tests.tolerances import assert_close

# Of each number of digits the largest number, and the one whose digits behind the first are -128.
LARGEST = {1: 127, 2: 127 << 8, 3: 127 << 16}
LOWEST = {1: 127, 2: (126 << 8) - 128, 3: (126 << 16) - (128 << 8) - 128}


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """And all digits for many tokens too, which floats are quicker than in words."""
    monkeypatch.setattr(kernel, "SMALL", 2**62)
    monkeypatch.setattr(products, "quicker", lambda zero, digits: possible(zero))


@sampled(1, "4-5-2")
@pytest.mark.parametrize(
    "bits, tokens, digits", [(2, 1, 3), (4, 1, 3), (4, 5, 3), (4, 5, 2), (5, 5, 1), (6, 5, 1)]
)
def test_the_largest_codes_with_the_largest_digits(bits, tokens, digits):
    """By hand: codes are all the same, so a sum is that of the activations, so many times."""
    most = 2**bits - 1
    ones, zeros = np.ones((3, 4), DTYPES["bfloat16"]), np.zeros((3, 4), DTYPES["bfloat16"])
    weight = QuantizedTensor(pack(np.full((3, 256), most), bits), ones, zeros, bits, 64, "affine")
    x = np.full((tokens, 256), LOWEST[digits], np.float32)
    x[:, ::16] = LARGEST[digits]
    x[::2] *= -1
    right = np.repeat(most * x.astype(np.float64).sum(axis=1, keepdims=True), 3, axis=1)
    assert_close(products.product(x, weight, digits=digits), right, kind="sum")


@pytest.mark.parametrize(("fill", "weight"), [(255, 31), (0, -32)])
def test_the_largest_codes_of_six_bits_with_all_digits(fill, weight):
    """By hand: scales are 1 and codes the same, so a sum is that of activations, so many times."""
    blocks = np.full((3, 210), fill, np.uint8)
    blocks[:, 192:208] = 1
    blocks[:, 208:] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    x = np.full((2, 256), LOWEST[3], np.float32)
    x[:, ::16] = LARGEST[3]
    x[1] *= -1
    right = np.repeat(weight * x.astype(np.float64).sum(axis=1, keepdims=True), 3, axis=1)
    assert_close(products.product(x, BlockTensor(blocks, "Q6_K")), right, kind="sum")


@pytest.mark.parametrize("zero, columns", [(2, 32), (8, 32), (16, 32), (32, 32), (32, 16)])
def test_words_have_room(zero, columns):
    """By hand: what is added to a word, four columns at a time, is two products at most."""
    parts = parts_of(columns, zero)
    assert [column for part in parts for column in part] == list(range(0, columns, 4))
    assert max(len(part) for part in parts) * 2 * (2 * zero - 1) * 128 <= WORD


def test_codes_of_eight_bits_are_left_to_floats(monkeypatch):
    """By hand: 255 times -128, twice, is less than any word."""
    monkeypatch.setattr(tile, "adds_four", lambda: False)
    monkeypatch.setattr(tile, "adds_two", lambda: True)
    assert [possible.__wrapped__(zero) for zero in (8, 32, 128)] == [True, True, False]
