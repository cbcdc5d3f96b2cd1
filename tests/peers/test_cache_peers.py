"""Our caches against mlx-lm's: slots and masks of a rotating one, quantised codes. By witness."""

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.models.cache import (
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    save_prompt_cache,
)

from lockstep import fast, reference
from lockstep.fast.backends.mlx import MlxBackend
from lockstep.fast.caches.held_codes import HeldCodes
from lockstep.parity.prompt_cache.mlx_lm import load_mlx_lm_cache
from lockstep.reference.caches import affine
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.codecs import AffineCodes
from lockstep.reference.stores.coded import Coded, decoded
from lockstep.reference.stores.concatenating import Concatenating
from lockstep.reference.stores.growing import Growing
from lockstep.reference.stores.ring import Ring
from lockstep.reference.stores.rotating import Rotating
from tests.parity.conftest import DEMO, MODELS

STEPS = [
    [1] * 12, [6, 1, 1, 1], [3, 3, 1, 2], [8, 1, 1, 3, 5, 1], [2, 1, 7, 1, 1], [4, 4, 4],
    [8, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 9, 1, 2, 1, 1, 1, 1, 1, 3],
]  # fmt: skip
SIZES = [(1, 0), (2, 0), (2, 1), (4, 0), (4, 1), (4, 3), (5, 0), (5, 1), (5, 2)]


def rotating(size: int, keep: int) -> Cache:
    """Return a cache of one layer that rotates as mlx-lm's."""
    stores = [(Rotating(size, np.zeros), Rotating(size, np.zeros))]
    rings = {"full_attention": Ring(size - keep, keep, "columns")}
    return Cache(stores, name="rotating-mlx-lm", rings=rings)


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize(("size", "keep"), SIZES)
def test_a_ring_is_mlx_lms_slot_by_slot_and_so_is_its_mask(steps, size, keep):
    """Tokens are their own numbers, so the buffers show who stands where, to the last slot."""
    ours, theirs = rotating(size, keep), RotatingKVCache(size, keep=keep)
    start = 0
    for count in steps:
        numbers = np.arange(start, start + count)
        new = numbers[None, None, :, None].astype(np.float32)
        mask = theirs.make_mask(count, return_array=True)
        every = ours.positions.extend(numbers[None])
        held, _ = ours.update(reference.ops, 0, new, new)
        rotated, _ = theirs.update_and_fetch(mx.array(new), mx.array(new))
        assert held.ravel().tolist() == np.array(rotated).ravel().tolist()
        keys = ours.keys_of("full_attention", numbers[None], every)
        seen = reference.ops.causal_mask(numbers[None], keys, window=None)[0, 0]
        wanted = np.ones_like(seen) if mask is None else np.array(mask)
        assert (seen == wanted).all()
        start += count


@pytest.mark.parametrize("steps", [[20, 1, 1, 1, 7, 1, 1, 12, 1], [1] * 30], ids=str)
@pytest.mark.parametrize("keep", [0, 4])
def test_a_model_with_mlx_lms_rotating_cache_gives_its_logits(steps, keep):
    """Every step of the demo's model: chunks and single tokens, far beyond the size of 16."""
    theirs, _ = mlx_lm.load(str(DEMO))
    theirs.set_dtype(mx.float32)
    caches = [RotatingKVCache(16, keep=keep) for _ in theirs.layers]
    models = [reference.load(DEMO), fast.load(DEMO, backend="mlx"), fast.load(DEMO, backend="cpu")]
    ours = [model.make_cache("rotating-mlx-lm", size=16, keep=keep) for model in models]
    tokens, start = np.random.default_rng(keep).integers(1, 300, (1, sum(steps))), 0
    for count in steps:
        part = tokens[:, start : start + count]
        wanted = np.array(theirs(mx.array(part), cache=caches))
        for model, cache in zip(models, ours, strict=True):
            found = np.array(model.forward(part, cache=cache))
            assert np.abs(found - wanted).max() < 1e-4 * wanted.std()
        start += count


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_affine_stores_hold_what_mlx_lms_quantised_cache_holds(bits, dtype):
    """Codes, scales and offsets of 300 tokens in three steps, to the bit."""
    rng = np.random.default_rng(bits)
    theirs = QuantizedKVCache(group_size=64, bits=bits)
    backend = MlxBackend(dtype, "cpu")
    codec = AffineCodes(bits, backend.affine)
    stores = [(Coded(codec, lambda: Growing(mx.zeros), HeldCodes), fast.ops)]
    if dtype == "float32":
        stores.append((Coded(AffineCodes(bits, affine), Concatenating, decoded), reference.ops))
    start = 0
    for size in (255, 2, 43):
        new = mx.array(rng.standard_normal((1, 2, size, 128)).astype(np.float32))
        new = new.astype(getattr(mx, dtype))
        parts, _ = theirs.update_and_fetch(new, new)
        for store, ops in stores:
            store.append(ops, new if ops is fast.ops else np.array(new), start)
            for ours, other in zip(store.arrays(), parts, strict=True):
                mine = mx.array(ours)[:, :, : start + size]
                assert mine.dtype == other.dtype and mx.array_equal(mine, other)
        start += size


@pytest.mark.parametrize("steps", [[9], [20, 1, 1, 1], [5, 1, 1, 30, 1, 4]], ids=str)
@pytest.mark.parametrize("kind", ["plain", "rotating", "rotating, kept", "8 bits", "4 bits"])
def test_a_file_of_mlx_lm_is_gone_on_with(kind, steps, tmp_path):
    """The demo's model reads with mlx-lm, which saves; ours goes on as mlx-lm does."""
    make = {"plain": KVCache, "rotating": lambda: RotatingKVCache(16),
            "rotating, kept": lambda: RotatingKVCache(16, keep=4),
            "8 bits": lambda: QuantizedKVCache(64, 8),
            "4 bits": lambda: QuantizedKVCache(64, 4)}[kind]  # fmt: skip
    theirs, _ = mlx_lm.load(str(DEMO))
    theirs.set_dtype(mx.float32)
    caches = [make() for _ in theirs.layers]
    tokens, start = np.random.default_rng(1).integers(1, 300, (1, sum(steps) + 3)), 0
    for count in steps:
        theirs(mx.array(tokens[:, start : start + count]), cache=caches)
        start += count
    save_prompt_cache(str(tmp_path / "cache.safetensors"), caches, {"note": "ours"})
    models = [reference.load(DEMO), fast.load(DEMO, backend="mlx"), fast.load(DEMO, backend="cpu")]
    read = tokens[0, :start].tolist()
    ours = [load_mlx_lm_cache(tmp_path / "cache.safetensors", model, read) for model in models]
    for place in range(start, start + 3):
        part = tokens[:, place : place + 1]
        wanted = np.array(theirs(mx.array(part), cache=caches))
        for model, loaded in zip(models, ours, strict=True):
            found = np.array(model.forward(part, cache=loaded.cache))
            assert np.abs(found - wanted).max() < 1e-4 * wanted.std()


def test_a_file_of_mlx_lm_is_not_taken_on_trust(tmp_path):
    """By hand: another number of tokens, another model, another class, no file of mlx-lm."""
    theirs, _ = mlx_lm.load(str(DEMO))
    path = tmp_path / "cache.safetensors"
    caches, model = [KVCache() for _ in theirs.layers], reference.load(DEMO)
    theirs(mx.array([[5, 6, 7]]), cache=caches)
    save_prompt_cache(str(path), caches)
    for tokens, folder, what in (
        ([5, 6], DEMO, "holds 3 tokens, but 2 are said"),
        ([5, 6, 7], DEMO.parent / "gemma4", "but this model's cache"),
        ([5, 6, 7], MODELS / "untied_float32", "but should hold 2 of one of KVCache"),
    ):
        with pytest.raises(InputError, match=what):
            load_mlx_lm_cache(path, reference.load(folder), tokens)
    save_prompt_cache(str(path), [ConcatenateKVCache.from_state(one.state[:2]) for one in caches])
    with pytest.raises(InputError, match="holds 'ConcatenateKVCache', but should hold 4 of one"):
        load_mlx_lm_cache(path, model, [5, 6, 7])
    with pytest.raises(InputError, match="holds null, but should hold 4 of one of KVCache"):
        load_mlx_lm_cache(DEMO / "model.safetensors", model, [5])
