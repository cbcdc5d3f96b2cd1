"""Codes, scales and offsets of the quantised caches: by hand, by law, and MLX's as a witness."""

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.fast.caches import affine_cpu, int8_cpu, int8_mlx
from lockstep.reference.caches.affine import affine
from lockstep.reference.caches.int8 import absmax, from_absmax
from lockstep.reference.stores.codecs import whole_group
from tests.draws import normal
from tests.ops_backends import DTYPES, to_mlx, to_numpy
from tests.reference.caches.test_caches import Side
from tests.tolerances import assert_same_bits

HALVES = ["float32", "bfloat16", "float16"]


def test_absmax_by_hand():
    """The largest is 127, so the scale is 1: ties go to even."""
    x = np.array([127.0, -127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.0], np.float32)
    codes, scales = absmax(x[None], 8)
    assert codes.tolist() == [[127, -127, 0, 2, 2, 0, -2, 0]] and codes.dtype == np.int8
    assert scales.tolist() == [[1.0]]
    assert from_absmax(codes, scales).tolist() == codes.astype(float).tolist()


def test_absmax_of_groups():
    """Each 64 dimensions have a scale of their own; zeros stay zeros."""
    x = np.concatenate([np.full(64, 254.0), np.zeros(64), np.full(64, -1.0)]).astype(np.float32)
    codes, scales = absmax(x[None], 64)
    assert scales.tolist() == [[2.0, 0.0, float(np.float32(1 / 127))]]
    assert codes.reshape(3, 64)[:, 0].tolist() == [127, 0, -127]
    np.testing.assert_allclose(from_absmax(codes, scales)[0], x, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_group_alone(bad):
    x = normal(0, 1, 128)
    x[0, 5] = bad
    for package in ("reference", "cpu", "mlx"):
        held = Side(package, "int8").step(*[x[None, None]] * 2)[0][0, 0, 0]
        assert not np.isfinite(held[5]) and np.isfinite(held[64:]).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(HALVES),
    st.sampled_from([1e-6, 4e-6, 1e-4, 1e-2, 1.0, 300.0]),
)
def test_absmax_is_off_by_half_a_step_at_most(seed, dtype, size):
    """By law: half a scale, and what rounding the scale and the product may add."""
    x = (size * normal(seed, 3, 128).astype(np.float64)).astype(DTYPES[dtype])
    codes, scales = absmax(x, 64)
    step = np.repeat(scales.astype(np.float64), 64, axis=-1)
    largest = np.repeat(np.abs(x.astype(np.float64)).reshape(3, 2, 64).max(-1), 64, axis=-1)
    tiny = {"float32": 0, "bfloat16": 0, "float16": 127 * 2.0**-25}[dtype]  # a subnormal scale
    slack = largest * float(ml_dtypes.finfo(DTYPES[dtype]).eps) + tiny
    off = np.abs(from_absmax(codes, scales).astype(np.float64) - x.astype(np.float64))
    assert (off <= step / 2 + slack).all()


def test_absmax_of_float16s_smallest_numbers_by_hand():
    """1.05e-5 / 127 is 1.39 steps of 2^-24: the scale is one step, and 127 of them are 7.6e-6."""
    codes, scales = absmax(np.full((1, 64), 1.05e-5, np.float16), 64)
    assert scales.tolist() == [[2.0**-24]] and set(codes.ravel().tolist()) == {127}
    assert set(from_absmax(codes, scales).ravel().tolist()) == {127 * 2.0**-24}
    codes, scales = absmax(
        np.full((1, 64), 63 * 2.0**-24, np.float16), 64
    )  # a scale of 0.496 steps
    assert scales.tolist() == [[0.0]] and not from_absmax(codes, scales).any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(HALVES), st.sampled_from([16, 64, 128, 192, 80]))
def test_absmax_is_the_same_on_every_backend(seed, dtype, width):
    """By law: codes, scales and what they decode to, to the bit."""
    x = normal(seed, 2, 3, width, dtype=DTYPES[dtype])
    group = whole_group(width)
    assert group == (width if width in (16, 80) else 64)
    codes, scales = absmax(x, group)
    for made in (int8_cpu.absmax(x, group), int8_mlx.absmax(to_mlx(x), group)):
        assert_same_bits(to_numpy(made[0]), codes)
        assert_same_bits(to_numpy(made[1]), scales)
    whole = from_absmax(codes, scales)
    assert_same_bits(int8_cpu.from_absmax(codes, scales), whole)
    on_mlx = int8_mlx.from_absmax(mx.array(codes), to_mlx(scales))
    assert_same_bits(to_numpy(on_mlx), whole)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from(HALVES),
    bits=st.sampled_from([4, 8]),
    group=st.sampled_from([32, 64]),
    shape=st.sampled_from(["normal", "above", "below", "constant", "negative", "zero", "tiny"]),
)
def test_affine_codes_are_those_of_mlx(seed, dtype, bits, group, shape):
    """By witness: mx.quantize on its CPU device, to the bit; so are both of ours."""
    x = normal(seed, 2, 5, 128)
    x = {"normal": x, "above": x + 9, "below": x - 9, "constant": 0 * x + 3,
         "negative": 0 * x - 2, "zero": 0 * x,
         "tiny": x * 1e-9}[shape].astype(DTYPES[dtype])  # fmt: skip
    with mx.stream(mx.cpu):
        theirs = [to_numpy(one) for one in mx.quantize(to_mlx(x), group_size=group, bits=bits)]
    for ours in (affine(x, bits, group), affine_cpu.affine(x, bits, group)):
        for one, other in zip(ours, theirs, strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("make", [affine, affine_cpu.affine], ids=["reference", "cpu"])
@pytest.mark.parametrize(("value", "scale"), [(2.0, -1e-7), (-2.0, -1e-7), (0.0, -1e-7)])
def test_affine_of_one_value_by_hand(make, value, scale):
    """Neither edge is farther from 0, so the scale is that of the upper one: below 0."""
    packed, scales, offsets = make(np.full((1, 64), value, np.float32), 8, 64)
    assert not packed.any() and offsets.tolist() == [[value]]
    assert scales.tolist() == [[float(np.float32(scale))]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("some", [(np.inf,), (-np.inf,), (np.inf, -np.inf)], ids=str)
@pytest.mark.parametrize("count", [1, 64], ids=["some", "all"])
def test_infinite_keys_spoil_their_group_as_in_mlx(dtype, some, count):
    """By witness: codes, scales and offsets of mx.quantize, and not a warning."""
    x = normal(0, 1, 128)
    x[0, :count] = np.resize(some, count)
    x[0, count : len(some)] = some[count:]
    x = x.astype(DTYPES[dtype])
    with mx.stream(mx.cpu):
        theirs = [to_numpy(one) for one in mx.quantize(to_mlx(x), group_size=64, bits=8)]
    for ours in (affine(x, 8, 64), affine_cpu.affine(x, 8, 64)):
        for one, other in zip(ours, theirs, strict=True):
            one, other = (part.astype(np.float64) for part in (one, other))
            np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [affine, affine_cpu.affine], ids=["reference", "cpu"])
def test_nan_spoils_its_group_alone(make):
    """By hand: codes of 0 on every machine, with a scale and an offset of NaN."""
    x = normal(0, 1, 128)
    x[0, 5] = np.nan
    packed, scales, offsets = make(x, 8, 64)
    assert not packed[0, :16].any() and packed[0, 16:].all()
    assert np.isnan([scales[0, 0], offsets[0, 0]]).all()
    assert np.isfinite([scales[0, 1], offsets[0, 1]]).all()


@pytest.mark.parametrize("name", ["reference", "cpu", "mlx"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bits", [4, 8])
def test_affine_is_read_as_mlx_reads_it(name, dtype, bits):
    """By witness, in float32: in half precision mx.dequantize rounds its product and sum itself."""
    x = normal(3, 1, 2, 6, 64, dtype=DTYPES[dtype])
    held = Side(name, f"affine{bits}").step(x, 2 * x)[0]
    parts = mx.quantize(-to_mlx(x), group_size=64, bits=bits)
    theirs = -to_numpy(mx.dequantize(*parts, group_size=64, bits=bits))
    eps = float(ml_dtypes.finfo(DTYPES[dtype]).eps)
    np.testing.assert_allclose(
        held.astype(np.float64), theirs.astype(np.float64), rtol=2 * eps, atol=8 * eps
    )


@pytest.mark.parametrize("name", ["reference", "cpu", "mlx"])
@pytest.mark.parametrize(
    ("width", "tokens", "room", "each"), [(128, 10, 256, 128 + 2 * 2 * 4), (64, 256, 512, 72)]
)
def test_affine_by_the_byte(name, width, tokens, room, each):
    """By hand: a byte a dimension, and a scale and an offset in float32 for each 64 of them.

    What `fast` holds them in has room for a token more.
    """
    side = Side(name, "affine8", layers=2)
    side.step(*[normal(0, 1, 1, tokens, width)] * 2)
    held = tokens if name == "reference" else room
    assert side.cache.nbytes == 2 * 2 * held * each


@pytest.mark.parametrize("name", ["reference", "cpu", "mlx"])
def test_a_width_that_mlx_cannot_pack_is_kept_as_it_is(name):
    x = normal(0, 1, 2, 3, 80)
    assert_same_bits(Side(name, "affine4", width=80).step(x, x)[0], x)
    narrow = normal(0, 1, 2, 3, 96)  # by groups of 32
    held = Side(name, "affine4", width=96).step(narrow, narrow)[0]
    assert not np.array_equal(held, narrow)
