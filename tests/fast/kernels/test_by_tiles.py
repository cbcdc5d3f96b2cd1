"""Products of float32 tokens with bfloat16 rows, by the matrix unit or as floats: the same laws.

Where the processor has no such unit, both ways are floats.
"""

import numpy as np
import pytest

from lockstep.fast.cpu.linear import linear
from lockstep.fast.kernels import by_tiles, kernel
from lockstep.fast.kernels.by_pairs import BFLOAT16
from lockstep.fast.kernels.digits import TINY
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.matrix_unit import DEEP
from tests.draws import normal
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures("unit_or_not")


def half(seed, *shape):
    return normal(seed, *shape).astype(BFLOAT16)


@pytest.mark.parametrize("columns", [32, 96, 1024])
@pytest.mark.parametrize("rows", [1, ROWS + 15, 2 * ROWS])
def test_a_product_is_as_near_as_a_float32_sum(rows, columns):
    """By float64."""
    weight = half(0, rows, columns)
    for tokens in (4, DEEP, DEEP + 1, 2 * DEEP, 2 * DEEP + 5):
        x = normal(tokens, tokens, columns)
        found = linear(x, weight, None)
        assert found.dtype == np.float32
        assert_close(found, x.astype(np.float64) @ weight.astype(np.float64).T, kind="sum")


@pytest.mark.parametrize("columns", [1056, 2080])
@pytest.mark.parametrize("rows", [97, 300])
@pytest.mark.parametrize("wide", [2, 3, 8])
def test_rows_that_a_core_takes_together(wide, rows, columns, monkeypatch):
    """By law: a block of rows is summed by itself, in more pieces of columns than one too."""
    x, weight = normal(0, 40, columns), half(1, rows, columns)
    monkeypatch.setattr(by_tiles, "together", lambda *_: 1)
    alone = linear(x, weight, None)
    assert_close(alone, x.astype(np.float64) @ weight.astype(np.float64).T, kind="sum")
    monkeypatch.setattr(by_tiles, "together", lambda *_: wide)
    np.testing.assert_array_equal(linear(x, weight, None), alone)


@pytest.mark.parametrize("mean", [0, 1])
def test_wide_rows_are_no_further_off(mean):
    """By float64: one float32 sum of all columns would be off by 1e-6 of numbers of one sign."""
    x, weight = normal(0, 20, 14336) + np.float32(mean), half(1, 40, 14336) + BFLOAT16.type(mean)
    right = x.astype(np.float64) @ weight.astype(np.float64).T
    error = np.abs(linear(x, weight, None) - right).max()
    assert error < 4e-7 * np.abs(right).max()


def test_many_tokens_are_those_of_few(monkeypatch):
    """By law: terms of some tokens are held at once."""
    x, weight = normal(0, 75, 64), half(1, 5, 64)
    found = linear(x, weight, None)
    monkeypatch.setattr(by_tiles, "TOGETHER", 32)
    np.testing.assert_array_equal(linear(x, weight, None), found)


def test_one_picks_a_weight_out_and_a_token_a_number():
    """By law: a number is all of its terms, to the last bit."""
    weight = half(0, ROWS + 3, 64)
    np.testing.assert_array_equal(linear(np.eye(64, dtype=np.float32), weight, None), weight.T)
    x = normal(1, 20, 64) * np.float32(10) ** np.arange(-16, 16, dtype=np.float32).repeat(2)
    np.testing.assert_array_equal(linear(x, np.eye(64, dtype=BFLOAT16), None), x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_with_its_token_and_its_row(bad):
    """By hand: all weights are 2, so that an infinity keeps its sign."""
    x, weight = np.ones((19, 32), np.float32), np.full((5, 32), 2, BFLOAT16)
    x[3, 7] = bad
    found = linear(x, weight, None)
    np.testing.assert_array_equal(found[3], np.full(5, bad, np.float32))
    np.testing.assert_array_equal(np.delete(found, 3, axis=0), 64)
    weight[1, 4], x[3, 7] = bad, 1
    found = linear(x, weight, None)
    np.testing.assert_array_equal(found[:, 1], np.full(19, bad, np.float32))
    np.testing.assert_array_equal(np.delete(found, 1, axis=1), 64)


def test_an_infinite_weight_and_a_number_of_few_bits():
    """By hand: a term that is 0 must not make NaN of it."""
    x, weight = np.ones((4, 32), np.float32), np.ones((2, 32), BFLOAT16)
    weight[0, 0] = np.inf
    np.testing.assert_array_equal(linear(x, weight, None), [[np.inf, 32]] * 4)


def test_the_largest_numbers():
    """By hand: no term of the largest float32 overflows; sixteen times 2**124 does."""
    x, weight = np.zeros((4, 32), np.float32), np.ones((1, 32), BFLOAT16)
    x[:, 0] = np.finfo(np.float32).max
    np.testing.assert_array_equal(linear(x, weight, None), x[:, :1])
    x[:, :16] = np.float32(2.0**124)
    assert np.isinf(linear(x, weight, None)).all()


def test_a_token_that_overflows_changes_no_bit_of_others():
    x, weight = normal(0, 9, 64), np.abs(half(1, 5, 64))
    alone = linear(x[:8], weight, None)
    x[8] = np.float32(2.0**127)
    found = linear(x, weight, None)
    assert np.isinf(found[8]).any()
    np.testing.assert_array_equal(found[:8], alone)


def test_a_token_of_tiny_numbers_keeps_all_digits():
    """By float64: their terms would lie below what the unit holds."""
    x, weight = normal(0, 6, 64), half(1, 3, 64)
    x[2] *= TINY * np.float32(1e-17)
    found = linear(x, weight, None)
    right = x.astype(np.float64) @ weight.astype(np.float64).T
    np.testing.assert_allclose(found[2], right[2], rtol=1e-5)


def test_how_many_cores_and_which_tokens_go_along_changes_no_bit(monkeypatch):
    """By law: each product is one core's, and a token's sum its own."""
    x, weight, found = normal(0, 2 * DEEP + 8, 256), half(1, 3 * ROWS + 5, 256), []
    for small in (0, 2**62):
        monkeypatch.setattr(kernel, "SMALL", small)
        found += [linear(x, weight, None), linear(x[:DEEP], weight, None)]
    x[20] = np.nan
    found += [np.delete(linear(x, weight, None), 20, axis=0)[:20]]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0][: len(other)])


def test_the_unit_is_used_where_there_is_one(monkeypatch):
    calls, product = [], by_tiles.product_of_terms
    monkeypatch.setattr(by_tiles, "product_of_terms", lambda *all: calls.append(1) or product(*all))
    for columns in (64, 48):
        linear(normal(0, 5, columns), half(1, 3, columns), None)
    linear(normal(0, 3, 64), half(1, 3, 64), None)
    assert len(calls) == int(by_tiles.possible("amx-bf16"))
