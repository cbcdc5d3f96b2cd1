"""Attention of many queries over codes, by blocks. The truth is what the codes decode to."""

import numpy as np
import pytest

from lockstep.fast.caches.held_codes import HeldCodes
from lockstep.fast.cpu import attention
from lockstep.fast.kernels import attend_decoded, attend_prompt
from lockstep.reference.ops import attention as attention_by_definition
from lockstep.reference.stores.kinds import QUANTISED, TURBO_BITS
from tests.draws import normal
from tests.fast.kernels.test_attend_codes import HEADS, SCALE, counted, held, mask_of, wanted
from tests.tolerances import assert_close


@pytest.fixture
def small_blocks(monkeypatch):
    """Let seven keys pass by at a time: many blocks, and a last one that is not full."""
    for module in (attend_decoded, attend_prompt):
        monkeypatch.setattr(module, "BLOCK", 7)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize(("count", "new"), [(20, 17), (4, 18), (30, 40)])
def test_blocks_are_attended_as_what_they_decode_to(kind, count, new, small_blocks):
    """By loop over all kinds: behind codes of earlier chunks, and before tokens that are none."""
    keys, values = held(kind, count, new)
    assert (keys.recent is not None) == (kind in TURBO_BITS)
    queries, mask = normal(7, 2, HEADS, new, 32), mask_of(count + new, new)
    found = attend_decoded.attended(queries, keys, values, mask, scale=SCALE)
    assert found is not None
    assert_close(found, wanted(queries, keys, values, mask), kind="sum")


@pytest.mark.parametrize("kind", ["turbo3", "affine8"])
@pytest.mark.parametrize("window", [None, 9])
def test_a_window_and_padding_hide_keys(kind, window, small_blocks):
    """By loop; blocks that nobody sees may hold anything."""
    keys, values = held(kind, 40, 20)
    mask = mask_of(60, 20, window=window, hidden=(33, 41, 42))
    assert mask.kind == "some"
    queries = normal(7, 2, HEADS, 20, 32)
    right = wanted(queries, keys, values, mask)
    if window is not None:
        for side in (keys, values):
            side.codes[1][:, :, :28] = np.nan  # the first key that is seen is number 32
    found = attend_decoded.attended(queries, keys, values, mask, scale=SCALE)
    assert_close(found, right, kind="sum")


@pytest.fixture
def read(small_blocks, monkeypatch):
    """Return a list to which goes how many tokens are decoded, each time that some are."""
    floats_of, counts = attend_decoded.floats_of, []

    def noted(part):
        counts.append(part.shape[2])
        return floats_of(part)

    monkeypatch.setattr(attend_decoded, "floats_of", noted)
    return counts


@pytest.mark.parametrize("kind", QUANTISED)
def test_no_more_than_a_block_is_decoded(kind, read, monkeypatch):
    """By hand: whoever reads codes is given seven tokens at most; TurboQuant's stay turned."""
    keys, values = held(kind, 30, 20)
    queries, mask, turned_back = normal(7, 2, HEADS, 20, 32), mask_of(50, 20), []
    if kind in TURBO_BITS:
        monkeypatch.setattr(HeldCodes, "decoded", counted(HeldCodes.decoded, turned_back))
    attention(queries, keys, values, mask, scale=SCALE, masked_row="uniform")
    assert sum(read) == 2 * keys.codes[0].shape[2] and max(read) == 7
    assert not turned_back


def test_what_nobody_sees_is_not_decoded(read):
    """By hand: of 60 tokens the first that a window of 9 shows is number 32, in the fifth block."""
    keys, values = held("int8", 40, 20)
    queries, mask = normal(7, 2, HEADS, 20, 32), mask_of(60, 20, window=9)
    assert attend_decoded.attended(queries, keys, values, mask, scale=SCALE) is not None
    assert sum(read) == 2 * (60 - 28)


@pytest.mark.parametrize("kind", ["turbo2", "int8", "affine4"])
def test_halves_are_computed_in_float32_and_rounded_once(kind, small_blocks):
    """By loop, in float64 over what the codes decode to; between two halves it may be either."""
    keys, values = held(kind, 30, 20)
    queries, mask = normal(7, 2, HEADS, 20, 32).astype(np.float16), mask_of(50, 20)
    found = attention(queries, keys, values, mask, scale=SCALE, masked_row="uniform")
    assert found.dtype == np.float16
    wide = (part.astype(np.float64) for part in (queries, keys.decoded(), values.decoded()))
    right = attention_by_definition(*wide, mask.mask, scale=SCALE, masked_row="uniform")
    assert_close(found, right, kind="sum")


def test_heads_that_do_not_belong_together_are_left_to_numpy():
    """By law: nothing is read behind the end of an array."""
    keys, values = held("int8", 20, 17)
    queries, mask = normal(7, 2, HEADS, 17, 32), mask_of(37, 17)
    for one, other, asked in (
        (keys, values.part(0, 9), queries),
        (keys, values, queries[:, :5]),
        (keys, values, queries[:1]),
    ):
        assert attend_decoded.attended(asked, one, other, mask, scale=SCALE) is None
