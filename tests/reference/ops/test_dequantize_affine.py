from dataclasses import replace
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.checkpoint.quantized import QuantizedTensor
from tests.draws import normal, pack, packed_matrix, seeds
from tests.ops_backends import DTYPES
from tests.rounding import nearest
from tests.tolerances import assert_close, assert_same_bits

WIDTHS = (2, 3, 4, 5, 6, 8)
PACKINGS = [*product(WIDTHS, (32, 64, 128))]
ALL = slice(None)
FLOAT32 = DTYPES["float32"]


def codes_by_loop(packed, bits: int) -> np.ndarray:
    """Read one bit at a time: bit i of a row is bit i % 32 of its word i // 32."""
    out = np.zeros((len(packed), packed.shape[1] * 32 // bits), np.int64)
    for (row, column), digit in product(np.ndindex(out.shape), range(bits)):
        word, bit = divmod(column * bits + digit, 32)
        out[row, column] |= (int(packed[row, word]) >> bit & 1) << digit
    return out


def plain(packed, bits: int, group: int = 32) -> QuantizedTensor:
    """Scale 1 and offset 0, so that the values are the codes."""
    ones = np.ones((len(packed), packed.shape[1] * 32 // bits // group), np.float32)
    return QuantizedTensor(packed, ones, 0 * ones, bits, group, "affine")


@settings(max_examples=15)
@given(seed=seeds, packing=st.sampled_from(PACKINGS))
def test_unpacks_bit_by_bit(backend, seed, packing):
    """By loop: a decoder that reads single bits, on arbitrary words."""
    bits, group = packing
    words = np.random.default_rng(seed).integers(0, 2**32, (2, 128 * bits // 32), np.uint32)
    found = backend.dequantize_affine(plain(words, bits, group), rows=ALL, dtype=FLOAT32)
    assert_close(found, codes_by_loop(words, bits), kind="exact")


@pytest.mark.parametrize("bits", WIDTHS)
def test_every_code_at_every_place(backend, bits):
    """By hand: all codes count up, and each one comes to each of the 32 places of a group."""
    count = np.arange(2**bits)[:, None] + np.arange(32)
    codes = count % 2**bits
    found = backend.dequantize_affine(plain(pack(codes, bits), bits), rows=ALL, dtype=FLOAT32)
    assert_close(found, codes, kind="exact")


@pytest.mark.parametrize("bits", [1, 7])
def test_widths_beside_those(backend, bits):
    """By loop: no checkpoint has 1 or 7 bits, but the format goes on to them."""
    words = np.random.default_rng(0).integers(0, 2**32, (3, 64 * bits // 32), np.uint32)
    found = backend.dequantize_affine(plain(words, bits), rows=ALL, dtype=FLOAT32)
    assert_close(found, codes_by_loop(words, bits), kind="exact")


@pytest.mark.parametrize("bits, group", PACKINGS)
def test_reads_what_mlx_writes(backend, bits, group):
    """By witness: `mx.quantize` packs, `mx.dequantize` says what it meant; not a bit differs."""
    with mx.stream(mx.cpu):
        packed = mx.quantize(mx.array(normal(bits, 3, 256)), group_size=group, bits=bits)
        expected = np.array(mx.dequantize(*packed, group_size=group, bits=bits))
    weight = QuantizedTensor(*map(np.array, packed), bits, group, "affine")
    found = backend.dequantize_affine(weight, rows=ALL, dtype=FLOAT32)
    assert_same_bits(found, expected)


@pytest.mark.parametrize("scales", ["bfloat16", "float16", "float32"])
def test_rounds_product_and_sum_once_each(precision, scales):
    """By loop: scales are widened first; the product is rounded, then the sum."""
    backend, dtype = precision
    weight, _ = packed_matrix(5, 4, 64, bits=6, group=32, dtype=DTYPES[scales])
    wide, offset = (
        np.repeat(nearest(part.astype(np.float64), dtype), 32, axis=1)
        for part in (weight.scales, weight.biases)
    )
    codes = codes_by_loop(weight.packed, 6)
    exact = nearest(nearest(wide * codes, dtype) + offset, dtype)
    found = backend.dequantize_affine(weight, rows=ALL, dtype=dtype)
    assert_close(found, exact, kind="exact")
    assert found.dtype == dtype


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(
    "rows", [slice(1, 3), slice(0, 0), slice(3, 99), np.array([2, 0, 2]), np.array([], np.int64)]
)
def test_unpacks_the_chosen_rows_alone(backend, bits, rows):
    """By law: choosing before is choosing after; no rows keep their width."""
    weight, _ = packed_matrix(0, 4, 64, bits=bits, group=32)
    whole = backend.dequantize_affine(weight, rows=ALL, dtype=FLOAT32)
    found = backend.dequantize_affine(weight, rows=rows, dtype=FLOAT32)
    assert_same_bits(found, whole[rows])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["scales", "biases"])
def test_what_is_not_finite_spoils_its_group_alone(backend, field, bad):
    """By law: the other groups are as ever. Code 0 times infinity is NaN."""
    weight, exact = packed_matrix(0, 2, 64, bits=4, group=32)
    planted = getattr(weight, field).copy()
    planted[1, 0] = bad
    weight = replace(weight, **{field: planted})
    found = backend.dequantize_affine(weight, rows=ALL, dtype=FLOAT32)
    assert not np.isfinite(found[1, :32]).any()
    clean = np.isfinite(found)
    assert clean.sum() == 96
    assert_close(found[clean], exact[clean], kind="sum")


@pytest.mark.parametrize("scale", [0.0, -0.25])
def test_zero_and_negative_scales(backend, scale):
    """By hand: a scale of 0 leaves the offset, a negative one counts down."""
    weight = plain(pack(np.arange(32)[None] % 16, 4), 4)
    weight = replace(weight, scales=weight.scales * np.float32(scale), biases=weight.scales * 7)
    found = backend.dequantize_affine(weight, rows=ALL, dtype=FLOAT32)
    assert_close(found, scale * (np.arange(32)[None] % 16) + 7, kind="exact")


def test_every_subnormal_scale_is_kept(precision):
    """By hand: all 1023 subnormal float16 scales, times code 3."""
    backend, dtype = precision
    scales = np.arange(1, 1024, dtype=np.uint16).view(np.float16)[:, None]
    weight = plain(pack(np.full((1023, 32), 3), 4), 4)
    weight = replace(weight, scales=scales, biases=np.zeros_like(scales))
    found = backend.dequantize_affine(weight, rows=ALL, dtype=dtype)
    exact = nearest(3 * nearest(np.arange(1, 1024) * 2.0**-24, dtype), dtype)
    assert_close(found, np.repeat(exact[:, None], 32, axis=1), kind="exact", each=True)
    assert found.all()


def test_overflow_is_quiet(backend):
    """By hand: 15 * 60000 has no float16; the result is infinite, without a warning."""
    weight = plain(pack(np.full((1, 32), 15), 4), 4)
    weight = replace(weight, scales=np.full((1, 1), 60000, np.float16))
    found = backend.dequantize_affine(weight, rows=ALL, dtype=DTYPES["float16"])
    assert_same_bits(found, np.full((1, 32), np.inf, np.float16))
