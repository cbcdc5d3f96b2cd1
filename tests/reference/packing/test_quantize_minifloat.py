import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.fast import packing as fast_packing
from lockstep.reference import packing
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS
from lockstep.reference.ops import dequantize_minifloat
from tests.draws import seeds
from tests.ops_backends import to_numpy
from tests.sampled import sampled

WAYS = (packing.quantize_minifloat, fast_packing.quantize_minifloat)
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
MLX = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
LARGEST = {"mxfp4": 6, "mxfp8": 448, "nvfp4": 6}
both = pytest.mark.parametrize("quantize", WAYS, ids=("reference", "fast"))
every = pytest.mark.parametrize("mode", MINIFLOATS)


def by_mlx(x: np.ndarray, mode: str, dtype: str = "float32") -> list[bytes]:
    with mx.stream(mx.cpu):
        held = mx.array(x.astype(np.float32)).astype(MLX[dtype])
        return [to_numpy(one).tobytes() for one in mx.quantize(held, mode=mode)]


def parts(packed) -> list[bytes]:
    return [np.ascontiguousarray(one).tobytes() for one in (packed.packed, packed.scales)]


@sampled(4, "bfloat16-mxfp4-fast")
@both
@every
@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=seeds, powers=st.sampled_from([0.0, 3.0, 12.0]))
def test_to_the_bit_what_mlx_makes(quantize, mode, dtype, seed, powers):
    """By witness: mlx.core.quantize."""
    rng = np.random.default_rng(seed)
    sizes = np.exp2(rng.uniform(-powers, powers, (3, 16))).repeat(16, axis=1)
    x = (rng.standard_normal((3, 256)) * sizes).astype(DTYPES[dtype])
    assert parts(quantize(x, mode=mode)) == by_mlx(x, mode, dtype)


@both
@every
def test_borders_of_scales_and_codes(quantize, mode):
    """By witness: every number halfway between two codes, and peaks around each power of two."""
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    if mode == "mxfp8":
        levels = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    middles = (levels[1:] + levels[:-1]) / 2
    signed = np.concatenate([levels, middles, -levels, -middles])
    rows = np.zeros((len(signed), 32), np.float32)
    rows[:, 0] = rows[:, 16] = LARGEST[mode]
    rows[:, 1] = rows[:, 17] = signed
    assert parts(quantize(rows, mode=mode)) == by_mlx(rows, mode)
    top = 20 if mode == "nvfp4" else 60  # beyond 2.5e10 MLX's search for the nearest code is blind
    powers = np.exp2(np.arange(-60, top, dtype=np.float32)) * LARGEST[mode]
    near = [np.nextafter(powers, np.float32(to)) for to in (0, np.inf)]
    peaks = np.zeros((3 * len(powers), 32), np.float32)
    peaks[:, 3] = np.concatenate([powers, *near])
    assert parts(quantize(peaks, mode=mode)) == by_mlx(peaks, mode)


@both
@every
def test_edges(quantize, mode):
    """By hand: zeros; what is not finite spoils its group alone; nothing at all."""
    zeros = quantize(np.zeros((1, 32), np.float32), mode=mode)
    assert not zeros.packed.any() and set(zeros.scales[0]) == {0 if mode == "nvfp4" else 127}
    assert quantize(np.zeros((0, 64), np.float32), mode=mode).shape == (0, 64)
    for odd in (np.nan, np.inf, -np.inf):
        x = np.ones((1, 64), np.float32)
        x[0, 5] = odd
        packed = quantize(x, mode=mode)
        found = dequantize_minifloat(packed, rows=slice(None), dtype=np.dtype(np.float32))[0]
        group = MINIFLOATS[mode][1]
        assert np.isnan(found[:group]).all()
        np.testing.assert_allclose(found[group:], 1, rtol=0.07)


@both
@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8"])
def test_a_scale_below_all_bytes_is_the_smallest(quantize, mode):
    """By hand. MLX's byte wraps round to one of the largest scales."""
    x = np.full((1, 32), 1e-38, np.float32)
    assert quantize(x, mode=mode).scales.item() == 0
