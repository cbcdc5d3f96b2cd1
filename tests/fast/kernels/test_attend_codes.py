"""Attention of a few queries over codes in machine code. The truth is what the codes decode to."""

from dataclasses import replace

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from lockstep.fast import kernels
from lockstep.fast.backends import backend_named
from lockstep.fast.caches.held_codes import FEW, HeldCodes
from lockstep.fast.cpu import attention, causal_mask
from lockstep.fast.kernels import attend_codes, kernel
from lockstep.fast.masks import Seen
from lockstep.reference.ops import attention as attention_by_definition
from lockstep.reference.stores.codecs import codec_named
from lockstep.reference.stores.coded import Coded
from lockstep.reference.stores.cooling import Cooling
from lockstep.reference.stores.growing import Growing
from lockstep.reference.stores.kinds import QUANTISED, TURBO_BITS
from tests.draws import normal
from tests.sampled import sampled
from tests.tolerances import assert_close

BACKEND = backend_named("cpu", dtype="float32", device=None)
SCALE, GROUPS, HEADS = 0.3, 2, 6


def held(kind, count, new, *, width=32, rows=2, backend=BACKEND, dtype=np.float32):
    """Return keys and values of `count + new` tokens as a cache gives them: 3 turbo ones plain."""
    found = []
    for seed, keys in enumerate((True, False)):
        codec = codec_named(kind, backend.int8, backend.affine, backend.turbo, keys=keys)
        parts = codec, lambda: Growing(backend.zeros), HeldCodes
        store = Cooling(*parts, 3) if kind in TURBO_BITS else Coded(*parts)
        tokens = backend.put(normal(seed, rows, GROUPS, count + new, width).astype(dtype))
        store.append(backend.ops, tokens[:, :, :count], 0)
        found.append(store.append(backend.ops, tokens[:, :, count:], count))
    return found


def mask_of(total, new, *, rows=2, window=None, hidden=()):
    """Return who sees whom when `new` of `total` tokens are asked; `hidden` ones are padding."""
    places = np.tile(np.arange(total), (rows, 1))
    keys = places.copy()
    keys[-1, list(hidden)] = -1
    return causal_mask(places[:, total - new :], keys, window=window)


def wanted(queries, keys, values, mask):
    """By definition: decode everything, then the reference's own operation."""
    how = {"scale": SCALE, "masked_row": "uniform"}
    return attention_by_definition(queries, keys.decoded(), values.decoded(), mask.mask, **how)


ALONE, TOGETHER = 2**62, 0  # how many products one core does by itself
KINDS_AND_CORES = [(kind, ALONE) for kind in QUANTISED] + [("int8", TOGETHER), ("turbo3", TOGETHER)]


@sampled(4, "37-3-turbo3-0")
@pytest.mark.parametrize(("kind", "small"), KINDS_AND_CORES)
@pytest.mark.parametrize(("count", "new"), [(20, 1), (4, 1), (37, 3)])
def test_codes_are_attended_as_what_they_decode_to(kind, count, new, small, monkeypatch):
    """By loop over all kinds: behind rows of buffers with room, and before tokens that are none."""
    monkeypatch.setattr(kernel, "SMALL", small)
    keys, values = held(kind, count, new)
    assert isinstance(keys, HeldCodes) and (keys.recent is not None) == (kind in TURBO_BITS)
    queries, mask = normal(7, 2, HEADS, new, 32), mask_of(count + new, new)
    found = attend_codes.attended(queries, keys, values, mask, scale=SCALE)
    assert found is not None
    assert_close(found, wanted(queries, keys, values, mask), kind="sum")


@sampled(1, "turbo3-256")
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("kind", ["turbo3", "affine4", "int8"])
def test_heads_of_every_width(kind, width):
    """By loop: int8 and affine have several groups a head then, turbo several words a plane."""
    keys, values = held(kind, 9, 1, width=width)
    queries, mask = normal(7, 2, HEADS, 1, width), mask_of(10, 1)
    found = attend_codes.attended(queries, keys, values, mask, scale=SCALE)
    assert_close(found, wanted(queries, keys, values, mask), kind="sum")


@sampled(4, "4-turbo2-mse")
@pytest.mark.parametrize("kind", ["turbo4", "turbo2-mse", "affine8", "int8"])
@pytest.mark.parametrize("window", [None, 4])
def test_a_window_and_padding_hide_keys(kind, window):
    """By loop; what is hidden may be anything, and does not spoil what is seen."""
    keys, values = held(kind, 9, 1)
    mask = mask_of(10, 1, window=window, hidden=(6, 9))
    queries = normal(7, 2, HEADS, 1, 32)
    right = wanted(queries, keys, values, mask)
    if window is not None:
        for side in (keys, values):
            side.codes[1][:, :, :3] = np.nan  # scales or lengths of tokens that nobody sees
    found = attend_codes.attended(queries, keys, values, mask, scale=SCALE)
    assert_close(found, right, kind="sum")


def test_codes_that_lie_unevenly_are_copied():
    """By law: slices of a longer buffer, and parts whose buffers differ in room."""
    keys, values = held("int8", 9, 1)
    queries, mask = normal(7, 2, HEADS, 1, 32), mask_of(10, 1)
    right = attend_codes.attended(queries, keys, values, mask, scale=SCALE)
    for side in (keys, values):
        side.codes[0] = np.ascontiguousarray(side.codes[0].swapaxes(0, 1)).swapaxes(0, 1)
        side.codes[1] = side.codes[1].copy()
    found = attend_codes.attended(queries, keys, values, mask, scale=SCALE)
    np.testing.assert_array_equal(found, right)


def left_to_others(case):
    """Return queries, keys, values and a mask that this kernel is not for."""
    count, rows = (FEW + 1, 2) if case == "many queries" else (1, 2)
    width = 24 if case == "a width of 24" else 32
    keys, values = held("int8", 9, count, width=width)
    queries, mask = normal(7, rows, HEADS, count, width), mask_of(9 + count, count)
    if case == "a row that sees nothing":
        mask = mask_of(10, 1, hidden=range(10))
        assert mask.blind
    return queries, keys, values, mask


@pytest.mark.parametrize("case", ["many queries", "a width of 24", "a row that sees nothing"])
def test_what_this_kernel_is_not_for_is_decoded(case):
    """By law: nothing is lost by it."""
    queries, keys, values, mask = left_to_others(case)
    assert attend_codes.attended(queries, keys, values, mask, scale=SCALE) is None
    how = {"scale": SCALE, "masked_row": "uniform"}
    found = attention(queries, keys, values, mask, **how)
    right = attention(queries, keys.decoded(), values.decoded(), mask, **how)
    assert_close(found, right, kind="sum")


def test_half_precision_is_decoded():
    """By loop, in float64, then rounded once; between two halves it may be either."""
    keys, values = held("int8", 9, 1)
    queries, mask = normal(7, 2, HEADS, 1, 32).astype(np.float16), mask_of(10, 1)
    assert attend_codes.attended(queries, keys, values, mask, scale=SCALE) is None
    found = attention(queries, keys, values, mask, scale=SCALE, masked_row="uniform")
    wide = (part.astype(np.float64) for part in (queries, keys.decoded(), values.decoded()))
    right = attention_by_definition(*wide, mask.mask, scale=SCALE, masked_row="uniform")
    assert_close(found, right, kind="sum")


@pytest.mark.parametrize("kind", ["turbo3", "int8"])
def test_without_machine_code_codes_are_decoded(kind, monkeypatch):
    """By law: the same sums, as far as their order goes."""
    keys, values = held(kind, 9, 1)
    queries, mask = normal(7, 2, HEADS, 1, 32), mask_of(10, 1)
    how = {"scale": SCALE, "masked_row": "uniform"}
    found = attention(queries, keys, values, mask, **how)
    monkeypatch.setattr(kernels, "available", lambda: False)
    decoded = []
    monkeypatch.setattr(HeldCodes, "decoded", counted(HeldCodes.decoded, decoded))
    assert_close(attention(queries, keys, values, mask, **how), found, kind="sum")
    assert len(decoded) == 2


def counted(method, calls):
    def call(self):
        calls.append(self)
        return method(self)

    return call


WIDTHS = [(kind, 64) for kind in QUANTISED] + [("affine4", 32), ("affine8", 128)]


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize(("kind", "width"), WIDTHS)
def test_mlx_attends_to_codes_as_to_what_they_decode_to(kind, width, new, monkeypatch):
    """By loop; and only those of int8 are decoded for a few queries."""
    mlx = backend_named("mlx", dtype="float32", device=None)
    keys, values = held(kind, 9, new, width=width, backend=mlx)
    queries, mask = normal(7, 2, HEADS, new, width), mask_of(9 + new, new, hidden=(4,))
    sides = [mlx.host(side.decoded()) for side in (keys, values)]
    how = {"scale": SCALE, "masked_row": "uniform"}
    right = attention_by_definition(queries, *sides, mask.mask, **how)
    decoded = []
    monkeypatch.setattr(HeldCodes, "decoded", counted(HeldCodes.decoded, decoded))
    made = mlx.host(mlx.ops.attention(mlx.put(queries), keys, values, mask, **how))
    assert_close(made, right, kind="sum")
    assert len(decoded) == (2 if kind == "int8" else 0)


@pytest.mark.parametrize(("rows", "new", "count"), [(0, 1, 10), (2, 0, 10), (2, 1, 0)])
@pytest.mark.parametrize("kind", ["affine4", "turbo4", "turbo2-mse"])
def test_mlx_makes_nothing_of_no_texts_queries_or_keys(kind, rows, new, count):
    """By definition zeros; MLX's own products would end the process or raise."""
    mlx = backend_named("mlx", dtype="float32", device=None)
    keys, values = (cut(side, rows, count) for side in held(kind, 9, 1, width=64, backend=mlx))
    mask = Seen("some", np.ones((rows, 1, new, count), bool))
    queries, how = mlx.put(normal(7, rows, HEADS, new, 64)), {"scale": SCALE, "masked_row": "nan"}
    found = mlx.host(mlx.ops.attention(queries, keys, values, mask, **how))
    np.testing.assert_array_equal(found, np.zeros((rows, HEADS, new, 64), np.float32))


def cut(side, rows, count):
    """Return the first tokens of the first texts, and no recent one if there is to be none."""
    codes = [part[:rows, :, :count] for part in side.codes]
    late = None if side.recent is None else side.recent[:rows, :, :count]
    return replace(side, codes=codes, recent=late)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("kind", ["affine8", "affine4"])
def test_mlx_multiplies_packed_codes_in_float32(kind, dtype):
    """By loop in float64, and rounded once: not where codes are decoded, nor at the scores."""
    mlx = backend_named("mlx", dtype=np.dtype(dtype).name, device=None)
    keys, values = held(kind, 9, 1, width=64, backend=mlx, dtype=dtype)
    queries, mask = normal(7, 2, HEADS, 1, 64).astype(dtype), mask_of(10, 1)
    how = {"scale": SCALE, "masked_row": "uniform"}
    found = mlx.host(mlx.ops.attention(mlx.put(queries), keys, values, mask, **how))
    wide = (part.astype(np.float64) for part in (queries, widely(keys), widely(values)))
    assert_close(found, attention_by_definition(*wide, mask.mask, **how), kind="sum")


def widely(side):
    """Return what affine codes decode to if their scales were stored in float32."""
    packed, *rest = side.codes
    codes = [packed, *(part.astype(mx.float32) for part in rest)]
    return np.array(replace(side, codes=codes, like=side.like.astype(mx.float32)).decoded())
