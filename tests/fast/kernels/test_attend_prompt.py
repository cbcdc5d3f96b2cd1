"""Attention of many queries in machine code, in float32."""

import numpy as np
import pytest

from lockstep.fast import kernels
from lockstep.fast.cpu import attention, causal_mask
from lockstep.fast.kernels import attend_prompt, helpers, kernel
from lockstep.fast.masks import Seen
from tests.draws import normal
from tests.tolerances import assert_close

SCALE = 0.3


def in_kernel(*arguments, scale=SCALE):
    found = attend_prompt.attended(*arguments, scale=scale)
    assert found is not None
    return found


def by_loop(queries, keys, values, seen):
    """Attend in float64, a query at a time; what is hidden is not looked at."""
    out = np.zeros(queries.shape)
    share = queries.shape[1] // keys.shape[1]
    for row, head, one in np.ndindex(queries.shape[:3]):
        places = np.flatnonzero(seen[row, 0, one])
        query = queries[row, head, one].astype(np.float64)
        scores = SCALE * keys[row, head // share, places].astype(np.float64) @ query
        probs = np.exp(scores - scores.max())
        out[row, head, one] = probs / probs.sum() @ values[row, head // share, places]
    return out


def assert_as_by_loop(queries, keys, values, mask):
    assert_close(
        in_kernel(queries, keys, values, mask),
        by_loop(queries, keys, values, mask.mask),
        kind="sum",
    )


def drawn(length, held, width=32, room=0):
    """Return queries of six heads, and two groups of keys and values out of a buffer with room."""
    queries = normal(0, 2, length, 6, width).swapaxes(1, 2)  # heads of a joined product are views
    keys, values = (normal(seed, 2, 2, held + room, width)[:, :, :held] for seed in (1, 2))
    return queries, keys, values


def causal(length, held, window=None):
    positions = np.tile(np.arange(held), (2, 1))
    return causal_mask(positions[:, held - length :], positions, window=window)


@pytest.mark.parametrize("small", [0, 2**62])
@pytest.mark.parametrize(
    ("length", "held"), [(1, 1), (2, 2), (15, 15), (16, 16), (17, 40), (33, 35)]
)
def test_a_prompt_and_a_chunk_of_one(length, held, small, monkeypatch):
    """By loop: whole blocks of queries and not, behind what a cache holds and not."""
    monkeypatch.setattr(kernel, "SMALL", small)
    queries, keys, values = drawn(length, held, room=3)
    mask = causal(length, held)
    assert mask.kind in ("all", "causal")
    assert_as_by_loop(queries, keys, values, mask)


@pytest.mark.parametrize("width", [4, 20, 64, 80, 128])
def test_heads_of_every_width(width):
    """By loop: a width need not fill the lanes, since these are queries."""
    queries, keys, values = drawn(18, 21, width)
    mask = causal(18, 21)
    assert_as_by_loop(queries, keys, values, mask)


@pytest.mark.parametrize("window", [1, 4, 25])
def test_a_window_hides_early_keys(window):
    """By loop: a block looks at no key before the first that one of its queries sees."""
    queries, keys, values = drawn(40, 50)
    mask = causal(40, 50, window)
    assert mask.kind == "some"
    early = max(11 - window, 0)  # keys that nobody sees
    keys[:, :, :early], values[:, :, :early] = np.nan, np.nan
    assert np.isfinite(by_loop(queries, keys, values, mask.mask)).all()
    assert_as_by_loop(queries, keys, values, mask)


def test_rows_of_unequal_length():
    """By loop: padding is hidden in one row, and stands between what is seen."""
    queries, keys, values = drawn(20, 30)
    positions = np.tile(np.arange(30), (2, 1))
    positions[1, 3:9] = -1
    mask = causal_mask(positions[:, 10:], positions, window=None)
    assert mask.kind == "some"
    assert_as_by_loop(queries, keys, values, mask)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_that_of_numpys_way(bad, monkeypatch):
    """By law: NaN comes out where NumPy's way has it, and in no other query."""
    queries, keys, values = drawn(18, 18)
    queries[0, 0, 5, 0] = bad
    found = in_kernel(queries, keys, values, causal(18, 18))
    monkeypatch.setattr(kernels, "available", lambda: False)
    plain = attention(queries, keys, values, causal(18, 18), scale=SCALE, masked_row="uniform")
    np.testing.assert_array_equal(np.isnan(found), np.isnan(plain))
    assert np.isnan(found[0, 0, 5]).all()
    assert np.isnan(found).sum() == 32


def test_a_mask_of_one_row_is_that_of_all():
    """By loop: the second row is not looked up behind the end of the mask."""
    queries, keys, values = drawn(20, 30)
    seen = causal(20, 30, 4).mask
    behind = np.stack([seen[:1], np.zeros_like(seen[:1])])  # what a kernel would find there
    assert_close(
        in_kernel(queries, keys, values, Seen("some", behind[0])),
        by_loop(queries, keys, values, seen),
        kind="sum",
    )


def test_scores_that_overflow_leave_nothing_to_divide_by():
    """By definition: a softmax of minus infinities is NaN, and nothing is warned of."""
    queries, keys = (np.full((1, 1, 4, 32), number, np.float32) for number in (1e25, -1e25))
    found = in_kernel(queries, keys, normal(2, 1, 1, 4, 32), triangle_of(4))
    assert np.isnan(found).all()


def triangle_of(length):
    places = np.arange(length)[None]
    return causal_mask(places, places, window=None)


@pytest.mark.parametrize(("among", "right"), [(1, 1), (np.inf, 1), (np.nan, np.nan)])
def test_what_weighs_nothing_does_not_overflow(among, right):
    """By hand: the first block overflows, then a key outweighs it; a NaN is still told."""
    queries, keys, values = drawn(20, 600)
    queries[:], keys[:], values[:] = 1, 0, 1
    keys[:, :, 550, 0] = 320
    values[:, :, :512] = 2e36
    values[:, :, 7] *= among
    found = in_kernel(queries, keys, values, causal(20, 600), scale=1)
    np.testing.assert_array_equal(found, np.full(queries.shape, right, np.float32))


def test_how_many_cores_work_changes_no_bit(monkeypatch):
    """By law: a block of queries is computed alone, whoever takes it."""
    queries, keys, values = drawn(70, 90)
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr(helpers.SETTINGS, "NUMBA_NUM_THREADS", count)
        monkeypatch.setattr(kernel, "SMALL", 0)
        found.append(in_kernel(queries, keys, values, causal(70, 90)))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("why", ["half precision", "a width of 6", "a query that sees nothing"])
def test_what_has_no_kernel_is_left_to_numpy(why):
    queries, keys, values = drawn(3, 5, 6 if "6" in why else 32)
    if why == "half precision":
        queries = queries.astype(np.float16)
    positions = np.tile(np.arange(5), (2, 1))
    if "nothing" in why:
        positions[1] = -1
    mask = causal_mask(np.tile([2, 3, 4], (2, 1)), positions, window=None)
    assert attend_prompt.attended(queries, keys, values, mask, scale=SCALE) is None


@pytest.mark.parametrize("other", ["wider values", "fewer keys", "one row"])
def test_arrays_that_do_not_belong_together_are_left_to_numpy(other):
    """By law: nothing is read or written behind the end of an array."""
    queries, keys, values = drawn(4, 9)
    if other == "wider values":
        values = normal(3, 2, 2, 9, 48)
    elif other == "fewer keys":
        keys = keys[:, :, :5]
    else:
        keys, values = keys[:1], values[:1]
    assert attend_prompt.attended(queries, keys, values, causal(4, 9), scale=SCALE) is None


@pytest.mark.parametrize("window", [None, 4, 25])
def test_keys_pass_by_in_blocks(window, monkeypatch):
    """By loop: a block of five, some of which a query does not see, or no query of sixteen."""
    monkeypatch.setattr(attend_prompt, "BLOCK", 5)
    queries, keys, values = drawn(40, 52)
    mask = causal(40, 52, window)
    assert_as_by_loop(queries, keys, values, mask)


def test_a_score_that_rises_from_block_to_block(monkeypatch):
    """By loop: what is known of earlier blocks is put right, also where it comes to nothing."""
    monkeypatch.setattr(attend_prompt, "BLOCK", 5)
    queries, keys, values = drawn(20, 31)
    keys *= np.linspace(0.1, 4, 31, dtype=np.float32)[:, None]
    mask = causal(20, 31)
    assert_as_by_loop(queries, keys, values, mask)


def test_chunks_of_a_prompt_change_no_bit(monkeypatch):
    """By law: blocks are counted from the first key, whichever queries see them together."""
    monkeypatch.setattr(attend_prompt, "BLOCK", 8)
    queries, keys, values = drawn(44, 44)
    whole = in_kernel(queries, keys, values, causal(44, 44))
    for start, stop in ((0, 13), (13, 30), (30, 44)):
        part = (queries[:, :, start:stop], keys[:, :, :stop], values[:, :, :stop])
        found = in_kernel(*part, causal(stop - start, stop))
        np.testing.assert_array_equal(found, whole[:, :, start:stop])


def test_blocks_that_nobody_sees_do_not_pass_by(monkeypatch):
    """By hand: of 52 keys a window of 4 shows the last 15 queries those from number 34."""
    monkeypatch.setattr(attend_prompt, "BLOCK", 5)
    queries, keys, values = drawn(15, 52)
    begun, add = [], attend_prompt.Averages.add

    def noted(self, queries, keys, values, before):
        begun.append(before)
        add(self, queries, keys, values, before)

    monkeypatch.setattr(attend_prompt.Averages, "add", noted)
    in_kernel(queries, keys, values, causal(15, 52, 4))
    assert begun == [30, 35, 40, 45, 50]
