"""Attention by the matrix unit: bfloat16 as it is; float32 goes without it.

Where the processor has none, the same laws hold of the way that stands in.
"""

import numpy as np
import pytest

from lockstep.fast.cpu import attention
from lockstep.fast.kernels import attend_prompt, attend_tiles
from lockstep.fast.kernels.by_pairs import BFLOAT16
from lockstep.fast.kernels.pair_tiles import weighty
from tests.draws import normal
from tests.fast.kernels.test_attend_prompt import (
    SCALE,
    by_loop,
    causal,
    drawn,
    in_kernel,
    triangle_of,
)
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures("unit_or_not")


def halves(length, held, width=32):
    return [part.astype(BFLOAT16) for part in drawn(length, held, width, room=3)]


def attended(queries, keys, values, mask):
    return attention(queries, keys, values, mask, scale=SCALE, masked_row="uniform")


@pytest.mark.parametrize("width", [32, 64, 128, 48])
@pytest.mark.parametrize(("length", "held"), [(2, 2), (33, 35), (70, 600)])
def test_bfloat16_is_rounded_once(length, held, width):
    """By loop: what comes out is the bfloat16 next to what is as near as 16 bits."""
    given, mask = halves(length, held, width), causal(length, held)
    found = attended(*given, mask)
    assert found.dtype == BFLOAT16
    right = by_loop(*given, mask.mask)
    off = np.abs(found.astype(np.float64) - right)
    assert (off <= 2.0**-8 * np.abs(right) + 1e-5).all()


@pytest.mark.parametrize("window", [1, 4, 25])
def test_bfloat16_and_a_window(window):
    given, mask = halves(40, 50), causal(40, 50, window)
    right = by_loop(*given, mask.mask).astype(BFLOAT16)
    np.testing.assert_allclose(attended(*given, mask), right, rtol=2**-7, atol=1e-4)


def test_float32_is_no_further_off_than_a_sum_in_order():
    """By loop: whether there is a unit or not."""
    queries, keys, values = drawn(64, 600, 128)
    mask = causal(64, 600)
    right = by_loop(queries, keys, values, mask.mask)
    off = np.abs(in_kernel(queries, keys, values, mask) - right)
    assert np.sqrt((off**2).mean()) < 2e-6 * right.std()


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


@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_is_not_finite_is_left_to_floats(which):
    """By law: an infinity comes out where bfloat16 widened to float32 has it, and NaN too."""
    given = halves(18, 18)
    given[which][0, 0, 5, 0] = np.inf
    wide = [part.astype(np.float32) for part in given]
    found, right = (attended(*some, causal(18, 18)) for some in (given, wide))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(right))


def test_tiny_values_keep_their_digits():
    """By loop: in float32."""
    queries, keys, values = drawn(20, 30)
    values *= np.float32(1e-33)
    mask = causal(20, 30)
    right = by_loop(queries, keys, values * np.float32(1e30), mask.mask)
    found = in_kernel(queries, keys, values, mask) * np.float32(1e30)
    assert_close(found, right, kind="sum")


def test_bfloat16_scores_that_overflow_are_nan():
    queries, keys = (np.full((1, 1, 4, 32), number, BFLOAT16) for number in (1e25, -1e25))
    found = attended(queries, keys, normal(2, 1, 1, 4, 32).astype(BFLOAT16), triangle_of(4))
    assert np.isnan(found).all()


def test_terms_that_weigh_least_are_left_out():
    """By hand: of the smallest first, those that reach the last of the longer side."""
    assert weighty(1, 1) == ((0, 0),)
    assert weighty(1, 2) == ((0, 0), (0, 1))
    assert weighty(3, 3) == ((0, 2), (1, 1), (2, 0), (1, 2), (2, 1), (2, 2))


def test_the_unit_is_used_where_there_is_one(monkeypatch):
    calls, add = [], attend_tiles.add
    monkeypatch.setattr(attend_tiles, "add", lambda *all: calls.append(1) or add(*all))
    attended(*drawn(5, 7), causal(5, 7))
    attended(*halves(5, 7), causal(5, 7))
    attended(*halves(5, 7, 48), causal(5, 7))
    assert len(calls) == int(attend_tiles.fits(32))  # for bfloat16 alone
