"""Products of bfloat16 with float32 sums; where the processor has none, the way that stands in.

All is held for its registers, and for its matrix unit: where there is none, for registers twice.
"""

import numpy as np
import pytest

from lockstep.fast.cpu.linear import linear
from lockstep.fast.kernels import by_pairs, by_tiles, kernel, pairs
from lockstep.fast.kernels.by_pairs import BFLOAT16, product_of_pairs
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.pairs import MANY
from tests.draws import normal
from tests.ops_backends import DTYPES
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures("unit_or_not")


def half(seed, *shape):
    return normal(seed, *shape, dtype=DTYPES["bfloat16"])


def assert_rounded_once(found, x, weight):
    """By float64: the nearest bfloat16 to what is as near as a float32 sum."""
    assert found.dtype == BFLOAT16
    assert_close(found, x.astype(np.float64) @ weight.astype(np.float64).T, kind="sum")


@pytest.mark.parametrize("columns", [16, 64, 1056])
@pytest.mark.parametrize("rows", [1, ROWS + 15, 2 * ROWS])
def test_products_of_many_tokens(rows, columns, monkeypatch):
    monkeypatch.setattr(kernel, "SMALL", 2**62)  # so that it is compiled once
    weight = half(0, rows, columns)
    for tokens in (4, 5, MANY, 17, 2 * MANY + 7, 33):
        x = half(tokens, tokens, columns)
        assert_rounded_once(linear(x, weight, None), x, weight)


@pytest.mark.parametrize("columns", [1056, 2080])
@pytest.mark.parametrize("rows", [97, 300])
@pytest.mark.parametrize("wide", [2, 3, 8])
def test_rows_that_a_core_takes_together(wide, rows, columns, monkeypatch):
    """By law: a block of rows is summed by itself, in more pieces of columns than one too."""
    x, weight = half(0, 40, columns), half(1, rows, columns)
    monkeypatch.setattr(by_tiles, "together", lambda *_: 1)
    alone = linear(x, weight, None)
    assert_rounded_once(alone, x, weight)
    monkeypatch.setattr(by_tiles, "together", lambda *_: wide)
    np.testing.assert_array_equal(linear(x, weight, None), alone)


def test_one_picks_a_weight_out():
    """By law."""
    weight = half(0, ROWS + 3, 32)
    np.testing.assert_array_equal(linear(np.eye(32, dtype=BFLOAT16), weight, None), weight.T)


def test_sums_are_float32_and_halves_go_to_the_even_one():
    """By hand: 1 + 2**-8 lies between 1 and 1 + 2**-7; a sum in bfloat16 stops at 256."""
    x = np.zeros((4, 512), BFLOAT16)
    x[0, :2], x[1, :3], x[2, :3] = (1, 2**-8), (1, 2**-7, 2**-8), (1, 2**-8, 2**-20)
    x[3] = 1
    ones = np.ones((5, 512), BFLOAT16)
    right = np.array([1, 1 + 2**-6, 1 + 2**-7, 512], np.float32)
    np.testing.assert_array_equal(linear(x, ones, None), np.repeat(right[:, None], 5, axis=1))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_with_its_token_and_its_row(bad):
    """By hand: all weights are 2, so that an infinity keeps its sign."""
    x, weight = np.ones((14, 32), BFLOAT16), np.full((5, 32), 2, BFLOAT16)
    x[3, 7] = bad
    found = linear(x, weight, None).astype(np.float32)
    np.testing.assert_array_equal(found[3], np.full(5, bad, np.float32))
    np.testing.assert_array_equal(np.delete(found, 3, axis=0), 64)
    weight[1, 4], x[3, 7] = bad, 1
    found = linear(x, weight, None).astype(np.float32)
    np.testing.assert_array_equal(found[:, 1], np.full(14, bad, np.float32))
    np.testing.assert_array_equal(np.delete(found, 1, axis=1), 64)


def test_what_no_bfloat16_holds_is_infinite():
    """By hand: sixteen times 2**124, and sixteen times 2**122."""
    x = np.full((4, 16), 2.0**64, BFLOAT16)
    weight, less = np.full((1, 16), 2.0**60, BFLOAT16), np.full((1, 16), 2.0**58, BFLOAT16)
    assert np.isinf(linear(x, weight, None).astype(np.float32)).all()
    np.testing.assert_array_equal(linear(x, less, None), 2.0**126)


def test_how_many_cores_and_which_tokens_go_along_changes_no_bit(monkeypatch):
    """By law: each product is one core's, and a token's sum its own."""
    x, weight, found = half(0, MANY + 8, 256), half(1, 3 * ROWS + 5, 256), []
    for small in (0, 2**62):
        monkeypatch.setattr(kernel, "SMALL", small)
        found += [linear(x, weight, None), linear(x[:MANY], weight, None)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0][: len(other)])


def test_without_the_instruction_the_rule_is_the_same(monkeypatch):
    monkeypatch.setattr(by_pairs, "possible", lambda: False)
    x, weight = half(0, 6, 64), half(1, 7, 64)
    assert product_of_pairs(x, weight) is None
    assert_rounded_once(linear(x, weight, None), x, weight)


def test_what_is_left_to_floats():
    """By hand: few tokens, another width, another dtype, nothing."""
    x, weight = half(0, 6, 64), half(1, 7, 64)
    assert product_of_pairs(x[:3], weight) is None
    assert product_of_pairs(x[:, :24], weight[:, :24]) is None
    assert product_of_pairs(x, weight.astype(np.float32)) is None
    assert product_of_pairs(x, weight[:0]) is None
    assert (product_of_pairs(x, weight) is not None) == pairs.possible()


def test_what_a_bfloat16_only_holds_in_part_counts_as_nothing():
    """By hand: the instruction takes what lies below 2**-126 for 0; floats do not."""
    x, weight = np.full((4, 16), 2.0**-130, BFLOAT16), np.full((1, 16), 2.0**120, BFLOAT16)
    right = 0 if pairs.possible() else 2.0**-6
    np.testing.assert_array_equal(linear(x, weight, None), right)
