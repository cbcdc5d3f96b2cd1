"""Four tokens times four rows: what the registers hold at once changes no bit."""

import numpy as np
import pytest
from numba import njit

from lockstep.fast.kernels import float_tile
from lockstep.fast.kernels.float_tile import FOUR, put_sixteen
from lockstep.fast.kernels.lanes import WIDTH
from tests.draws import normal
from tests.sampled import sampled
from tests.tolerances import assert_close, assert_same_bits

COLUMNS, BEGIN = 6 * WIDTH, 2 * WIDTH  # of the tokens, and where those are that are multiplied


def sixteen(tile, x, count, at_once, monkeypatch):
    monkeypatch.setattr(float_tile, "AT_ONCE", at_once)

    @njit
    def put(tile, x, count, out):
        put_sixteen(tile, tile.shape[1], x, BEGIN, x.shape[1], count, out)

    out = np.full((FOUR, FOUR), np.nan, np.float32)
    put(tile, x, count, out)
    return out


@sampled(1)
@pytest.mark.parametrize("count", [WIDTH, 3 * WIDTH, 4 * WIDTH])
def test_whatever_is_made_at_once(count, monkeypatch):
    """By definition, in float64; and bit by bit the same with wide registers and with others."""
    tile, x = normal(0, FOUR, 5 * WIDTH), normal(1, FOUR, COLUMNS)
    exact = x[:, BEGIN : BEGIN + count].astype(np.float64) @ tile[:, :count].T
    found = [
        sixteen(tile, x, count, at_once, monkeypatch)
        for at_once in ((FOUR, WIDTH), (2, WIDTH // 2), (1, WIDTH // 4))
    ]
    assert_close(found[0], exact, kind="sum")
    assert_same_bits(found[1], found[0])
    assert_same_bits(found[2], found[0])
