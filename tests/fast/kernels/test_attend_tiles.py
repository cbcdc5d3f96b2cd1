"""Attention of bfloat16 by the matrix unit.

Where the processor has none, the same laws hold of the way that stands in.
"""

import numpy as np
import pytest

from lockstep.fast.cpu import attention, causal_mask
from lockstep.fast.kernels import attend_prompt, attend_tiles, by_tiles, helpers, kernel
from lockstep.fast.kernels.by_pairs import BFLOAT16
from lockstep.fast.masks import Seen
from tests.draws import normal
from tests.fast.kernels.test_attend_prompt import SCALE, by_loop, causal, drawn, triangle_of

pytestmark = pytest.mark.usefixtures("unit_or_not")


def halves(length, held, width=32):
    return [part.astype(BFLOAT16) for part in drawn(length, held, width, room=3)]


def attended(queries, keys, values, mask):
    return attention(queries, keys, values, mask, scale=SCALE, masked_row="uniform")


def assert_rounded_once(found, right):
    """What comes out is the bfloat16 next to what is as near as 16 bits."""
    assert found.dtype == BFLOAT16
    off = np.abs(found.astype(np.float64) - right)
    assert (off <= 2.0**-8 * np.abs(right) + 1e-5).all()


def assert_as_by_loop(queries, keys, values, mask):
    found = attended(queries, keys, values, mask)
    assert_rounded_once(found, by_loop(queries, keys, values, mask.mask))


@pytest.mark.parametrize("width", [32, 48, 64, 80, 96, 128, 256])
def test_heads_of_every_width(width):
    """By loop: 32 columns are a step; other widths go another way."""
    assert_as_by_loop(*halves(33, 35, width), causal(33, 35))


@pytest.mark.parametrize("behind", [0, 5, 64])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129])
def test_blocks_of_queries_behind_a_cache(length, behind):
    """By loop: a query sees its own key and none after it, at every end of a block."""
    assert_as_by_loop(*halves(length, length + behind), causal(length, length + behind))


@pytest.mark.parametrize("held", [600, 1055])
def test_more_blocks_of_keys_than_one(held):
    """By loop: what is summed of blocks before is put right."""
    assert_as_by_loop(*halves(70, held), causal(70, held))


@pytest.mark.parametrize("block", [32, 512])
@pytest.mark.parametrize("window", [1, 4, 31, 32, 33, 60])
def test_a_window_hides_early_keys(window, block, monkeypatch):
    """By loop: also keys of a block of which others are seen."""
    monkeypatch.setattr(attend_prompt, "BLOCK", block)
    assert_as_by_loop(*halves(70, 100), causal(70, 100, window))


def test_rows_of_unequal_length():
    """By loop: padding is hidden in one row, and stands between what is seen."""
    positions = np.tile(np.arange(90), (2, 1))
    positions[1, 3:40] = -1
    mask = causal_mask(positions[:, 40:], positions, window=None)
    assert mask.kind == "some"
    assert_as_by_loop(*halves(50, 90), mask)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_heads_share_keys_as_they_are_grouped(groups):
    """By loop: of six heads all have the same keys, three have, or each has its own."""
    queries, _, _ = halves(20, 40)
    keys, values = (normal(seed, 2, groups, 40, 32).astype(BFLOAT16) for seed in (3, 4))
    assert_as_by_loop(queries, keys, values, causal(20, 40))


def test_keys_that_nobody_sees_behind_the_last():
    """By hand: zeros fill a block up, and their scores would be larger than all others."""
    queries = np.ones((1, 1, 2, 32), BFLOAT16)
    keys, values = np.full((1, 1, 33, 32), -3, BFLOAT16), np.ones((1, 1, 33, 32), BFLOAT16)
    all_seen = Seen("some", np.ones((1, 1, 2, 33), bool))
    for mask in (triangle_behind(2, 33), all_seen):
        np.testing.assert_array_equal(attended(queries, keys, values, mask), queries)


def triangle_behind(length, held):
    places = np.arange(held)[None]
    return causal_mask(places[:, held - length :], places, window=None)


def test_what_lies_apart_is_read_as_it_lies():
    """By law: heads whose numbers do not lie side by side are copied, others are not."""
    given, mask = halves(18, 20), causal(18, 20)
    right = attended(*given, mask)
    apart = [np.repeat(part, 2, axis=3)[..., ::2] for part in given]
    np.testing.assert_array_equal(attended(*apart, mask), right)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_chunks_change_no_bit(dtype, monkeypatch):
    """By law: blocks are counted from the first key, whichever queries see them together."""
    monkeypatch.setattr(attend_prompt, "BLOCK", 64)
    queries, keys, values = (part.astype(dtype) for part in drawn(150, 150))
    whole = attended(queries, keys, values, causal(150, 150))
    for start, stop in ((0, 13), (13, 100), (100, 150)):
        part = queries[:, :, start:stop], keys[:, :, :stop], values[:, :, :stop]
        found = attended(*part, causal(stop - start, stop))
        np.testing.assert_array_equal(found, whole[:, :, start:stop])


@pytest.mark.parametrize("cut", [13, 16, 250])
@pytest.mark.parametrize("window", [150, 200])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_chunks_change_no_bit_where_a_window_begins_late(dtype, window, cut):
    """By law: keys are summed from the same ones on, whichever query is the first of 32."""
    queries, keys, values = (part.astype(dtype) for part in drawn(400, 400, 64))
    whole = attended(queries, keys, values, causal(400, 400, window))
    for start, stop in ((0, cut), (cut, 400)):
        part = queries[:, :, start:stop], keys[:, :, :stop], values[:, :, :stop]
        found = attended(*part, causal(stop - start, stop, window))
        np.testing.assert_array_equal(found, whole[:, :, start:stop])


def test_how_many_cores_work_changes_no_bit(monkeypatch):
    """By law: a block of queries is computed alone, whoever takes it."""
    given, found = halves(70, 90), []
    monkeypatch.setattr(kernel, "SMALL", 0)
    for count in (1, 2, 3):
        monkeypatch.setattr(helpers.SETTINGS, "NUMBA_NUM_THREADS", count)
        found.append(attended(*given, causal(70, 90)))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_is_not_finite_is_left_to_floats(which, bad):
    """By law: bfloat16 widened to float32, and rounded once, is the same."""
    given = halves(18, 18)
    given[which][0, 0, 5, 0] = bad
    wide = [part.astype(np.float32) for part in given]
    found, right = (attended(*some, causal(18, 18)) for some in (given, wide))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(right))
    ordinary = np.isfinite(right)
    assert ordinary.any()
    np.testing.assert_array_equal(found[ordinary], right.astype(BFLOAT16)[ordinary])


@pytest.mark.parametrize("place", [0, 39, 40, 79])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_unit_is_given_nothing_that_is_not_finite(which, place):
    """By law: wherever in the blocks it stands."""
    given, mask = halves(80, 80), causal(80, 80)
    fits = by_tiles.fits(32)
    assert (attend_tiles.attended(*given, mask, scale=SCALE) is not None) == fits
    given[which][1, -1, place, 31] = np.nan
    assert attend_tiles.attended(*given, mask, scale=SCALE) is None


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_not_finite_leaves_other_rows_as_near(bad):
    """By loop: all go another way then, so bits may be others."""
    queries, keys, values = halves(40, 80)
    mask = causal(40, 80)
    right = by_loop(queries, keys, values, mask.mask)
    keys[1, :, 50] = bad
    assert_rounded_once(attended(queries, keys, values, mask)[0], right[0])


@pytest.mark.parametrize("size", [1e-28, 1e-33, 1e-35])
def test_tiny_values_keep_their_digits(size):
    """By loop, over `size`: the unit takes products below 2**-126 for 0."""
    queries, keys, values = halves(40, 80)
    values = (values.astype(np.float32) * np.float32(size)).astype(BFLOAT16)
    mask = causal(40, 80)
    right = by_loop(queries, keys, values.astype(np.float64) / size, mask.mask)
    off = np.abs(attended(queries, keys, values, mask).astype(np.float64) / size - right)
    assert (off <= 2.0**-8 * np.abs(right) + 1e-5).all()


@pytest.mark.parametrize("place", [0, 39, 79])
def test_the_unit_is_given_no_block_of_tiny_values(place):
    """By hand: one number in a block of zeros; a block of zeros alone is none."""
    given, mask = halves(80, 80), causal(80, 80)
    values = given[2]
    values[:, :, place // 32 * 32 : place // 32 * 32 + 32] = 0
    fits = by_tiles.fits(32)
    assert (attend_tiles.attended(*given, mask, scale=SCALE) is not None) == fits
    values[1, -1, place, 31] = 1e-30
    assert attend_tiles.attended(*given, mask, scale=SCALE) is None
    values[1, -1, place, 30] = -1
    assert (attend_tiles.attended(*given, mask, scale=SCALE) is not None) == fits


def test_scores_that_overflow_are_nan():
    queries, keys = (np.full((1, 1, 4, 32), number, BFLOAT16) for number in (1e25, -1e25))
    found = attended(queries, keys, normal(2, 1, 1, 4, 32).astype(BFLOAT16), triangle_of(4))
    assert np.isnan(found).all()


def test_what_weighs_nothing_does_not_overflow():
    """By hand: the first block overflows, then a key outweighs it."""
    queries, keys, values = (np.ones_like(part) for part in halves(20, 600))
    keys[:] = 0
    keys[:, :, 550, 0] = 2000
    values[:, :, :512] = 2e36
    np.testing.assert_array_equal(attended(queries, keys, values, causal(20, 600)), queries)


@pytest.mark.parametrize("other", ["wider values", "fewer keys", "one row", "floats"])
def test_arrays_that_do_not_belong_together_are_left_to_others(other):
    """By law: nothing is read or written behind the end of an array."""
    queries, keys, values = halves(4, 9)
    if other == "wider values":
        values = normal(3, 2, 2, 9, 64).astype(BFLOAT16)
    elif other == "fewer keys":
        keys = keys[:, :, :5]
    elif other == "one row":
        keys, values = keys[:1], values[:1]
    else:
        values = values.astype(np.float32)
    assert attend_tiles.attended(queries, keys, values, causal(4, 9), scale=SCALE) is None


def test_the_unit_is_used_where_there_is_one(monkeypatch):
    calls, add = [], attend_tiles.add
    monkeypatch.setattr(attend_tiles, "add", lambda *all: calls.append(1) or add(*all))
    attended(*drawn(5, 7), causal(5, 7))
    attended(*halves(5, 7), causal(5, 7))
    attended(*halves(5, 7, 48), causal(5, 7))
    assert len(calls) == int(by_tiles.fits(32))  # for bfloat16 alone
