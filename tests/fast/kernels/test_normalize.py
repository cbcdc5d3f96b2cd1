"""Norms in machine code: the edges of its loops, and views. `test_rms_norm` has their laws."""

import numpy as np
import pytest

from lockstep.fast import kernels
from lockstep.fast.cpu import rms_norm
from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.normalize import normalized
from tests.draws import cast, normal
from tests.ops_backends import DTYPES
from tests.tolerances import assert_close, assert_same_bits

BFLOAT16 = DTYPES["bfloat16"]
EPS = 1e-6


def exact(x, gain):
    """Return the norm in float64."""
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPS) * gain


@pytest.mark.parametrize("small", [0, 2**62])
@pytest.mark.parametrize("width", [16, 48, 1024])
def test_vectors_of_one_lane_and_more(width, small, monkeypatch):
    """By its formula in float64, on one core and on all."""
    monkeypatch.setattr(kernel, "SMALL", small)
    x, gain = normal(0, 2, 3, width), normal(1, width)
    assert_close(normalized(x, gain, eps=EPS), exact(x, gain), kind="sum")


def test_heads_that_are_a_part_of_a_wider_product():
    """By its formula: (B, L, H, D) out of columns of (B, L, N), as a joined product leaves them."""
    wide, gain = normal(0, 2, 3, 160), normal(1, 32)
    heads = wide[..., 32:128].reshape(2, 3, 3, 32)
    assert heads.base is not None and not heads.flags.c_contiguous
    found = normalized(heads, gain, eps=EPS)
    assert_close(found, exact(heads, gain), kind="sum")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_not_finite_is_that_of_the_other_way(bad, monkeypatch):
    """By law: NumPy's way gives the same NaN and zeros, and no other row knows of it."""
    x, gain = normal(0, 1, 3, 32), normal(1, 32)
    x[0, 1, 5] = bad
    found = normalized(x, gain, eps=EPS)
    monkeypatch.setattr(kernels, "available", lambda: False)
    plain = rms_norm(x, gain, eps=EPS)
    assert found is not None
    assert_same_bits(found[0, 1], plain[0, 1])
    assert np.isfinite(found[0, [0, 2]]).all()


def test_a_row_of_zeros():
    """By hand: nothing is divided by the root of eps, and without one that is NaN."""
    x, gain = np.zeros((1, 2, 16), np.float32), np.ones(16, np.float32)
    for eps, expected in ((EPS, 0), (0.0, np.nan)):
        found = normalized(x, gain, eps=eps)
        assert found is not None
        assert_same_bits(found, np.full((1, 2, 16), expected, np.float32))


@pytest.mark.parametrize("why", ["float16", "a width of 24", "no token", "columns"])
def test_what_has_no_kernel_is_left_to_numpy(why):
    x = normal(0, 2, 0 if why == "no token" else 3, 24 if "24" in why else 32)
    if why == "columns":
        x = normal(0, 2, 32, 3).swapaxes(1, 2)
    dtype = np.float16 if why == "float16" else np.float32
    assert normalized(x.astype(dtype, copy=False), normal(1, x.shape[-1]), eps=EPS) is None


@pytest.mark.parametrize(("dtype", "gain"), [(np.float16, 1e5), (np.float32, 1e300)])
def test_a_gain_that_is_too_large_is_infinite_without_a_word(dtype, gain):
    """By hand: warnings are errors here, and NumPy's way casts in silence."""
    found = rms_norm(np.ones((1, 16), dtype), np.full(16, gain), eps=EPS)
    assert_same_bits(found, np.full((1, 16), np.inf, dtype))


class Uncast(np.ndarray):
    def astype(self, *kind, **how):
        raise AssertionError("a gain was cast for nothing")


def test_a_gain_is_cast_only_for_a_kernel():
    gain = normal(1, 32).view(Uncast)
    assert normalized(normal(0, 2, 3, 32).astype(np.float16), gain, eps=EPS) is None


@pytest.mark.parametrize("width", [16, 48, 1024])
def test_bfloat16_is_rounded_before_the_gain_and_after_it(width):
    """By law: the bits of float32's norm, rounded, times the gain, rounded by NumPy."""
    x, gain = cast(normal(0, 2, 3, width) * 3, BFLOAT16), cast(normal(1, width), BFLOAT16)
    plain = normalized(x.astype(np.float32), np.ones(width, np.float32), eps=EPS)
    found = normalized(x, gain, eps=EPS)
    assert plain is not None and found is not None
    assert_same_bits(found, plain.astype(BFLOAT16) * gain)


def test_heads_in_bfloat16_that_are_a_part_of_a_wider_product():
    """By law: the bits of the same heads by themselves."""
    wide, gain = cast(normal(0, 2, 3, 160), BFLOAT16), cast(normal(1, 32), BFLOAT16)
    heads = wide[..., 32:128].reshape(2, 3, 3, 32)
    found, alone = (normalized(one, gain, eps=EPS) for one in (heads, heads.copy()))
    assert found is not None and alone is not None
    assert_same_bits(found, alone)
