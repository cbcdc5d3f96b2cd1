"""Our caches against mlx-lm's: the tokens of a rotating one, and quantised codes. By witness."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import QuantizedKVCache, RotatingKVCache

from lockstep import fast, reference
from lockstep.fast.backends.mlx import MlxBackend
from lockstep.fast.caches.affine import Affine as FastAffine
from lockstep.reference.caches.affine import Affine
from lockstep.reference.caches.cache import Cache
from lockstep.reference.caches.windowed import Windowed

STEPS = [[1] * 9, [6, 1, 1, 1], [3, 3, 1, 2], [8, 1, 1, 3, 5, 1], [2, 1, 7, 1, 1], [4, 4, 4]]


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("window", [1, 2, 4, 5])
def test_a_window_holds_the_tokens_of_mlx_lms_rotating_cache(steps, window):
    """Tokens are their own numbers. Ours come in their order, mlx-lm's as its ring has them."""
    ours, theirs = Cache(1, lambda layer: Windowed(), window), RotatingKVCache(window, keep=0)
    start = 0
    for size in steps:
        numbers = np.arange(start, start + size, dtype=np.float32)
        new = numbers[None, None, :, None]
        ours.positions.extend(numbers[None].astype(np.int64))
        held, _ = ours.update(reference.ops, 0, new, new)
        rotated, _ = theirs.update_and_fetch(mx.array(new), mx.array(new))
        assert held.ravel().tolist() == sorted(np.array(rotated).ravel().tolist())
        start += size


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_affine_stores_hold_what_mlx_lms_quantised_cache_holds(bits, dtype):
    """Codes, scales and offsets of 300 tokens in three steps, to the bit."""
    rng = np.random.default_rng(bits)
    theirs = QuantizedKVCache(group_size=64, bits=bits)
    backend = MlxBackend(dtype, "cpu")
    stores = [FastAffine(bits, backend)]
    if dtype == "float32":
        stores.append(Affine(bits))
    start = 0
    for size in (255, 2, 43):
        new = mx.array(rng.standard_normal((1, 2, size, 128)).astype(np.float32))
        new = new.astype(getattr(mx, dtype))
        parts, _ = theirs.update_and_fetch(new, new)
        for store in stores:
            native = new if isinstance(store, FastAffine) else np.array(new)
            ops = fast.ops if isinstance(store, FastAffine) else reference.ops
            store.append(ops, native, start)
            for ours, other in zip(store.arrays(), parts, strict=True):
                mine = mx.array(ours)[:, :, : start + size]
                assert mine.dtype == other.dtype and mx.array_equal(mine, other)
        start += size
