"""Activations cut into digits, and what products with fewer of them lose."""

import ml_dtypes
import numpy as np
import pytest

from lockstep.fast.kernels import kernel, tile
from lockstep.fast.kernels import product as products
from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.digits import in_digits, together
from lockstep.fast.kernels.product import product
from tests.draws import normal, packed_matrix
from tests.sampled import sampled

SPAN, ZERO = 32, 8


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    monkeypatch.setattr(kernel, "SMALL", 2**62)


def cut(x, digits):
    """Return digits (D, M, K), what sums begin with (D, M, S), steps and sums of numbers (M, S)."""
    of = Constants(format="any", span=SPAN, zero=ZERO, digits=digits)
    (cells, sums, steps), unfit = in_digits(x, of)
    assert not unfit.any()
    tokens, _ = together(SPAN, digits)
    shape = (len(cells), x.shape[1] // SPAN, tokens)
    rows = len(cells) * tokens
    cells = cells.reshape(*shape, digits, SPAN).transpose(3, 0, 2, 1, 4).reshape(digits, rows, -1)
    sums = sums.reshape(*shape, digits).transpose(3, 0, 2, 1).reshape(digits, rows, -1)
    steps = steps.reshape(*shape, 2).transpose(3, 0, 2, 1).reshape(2, rows, -1)
    assert not cells[:, len(x) :].any()  # tokens that fill up a block
    return cells[:, : len(x)].astype(np.int64), sums[:, : len(x)], steps[:, : len(x)]


@sampled(0)
@pytest.mark.parametrize("digits", [1, 2, 3])
def test_digits_make_the_number_to_half_a_step(digits):
    """By law: 256 times what went before, plus the digit, is the number over its step."""
    x = normal(0, 6, 96) * np.float32(10.0) ** np.arange(-3, 3, dtype=np.float32)[:, None]
    cells, sums, (steps, of_all) = cut(x, digits)
    whole = sum(cells[digit] << (8 * digit) for digit in range(digits))
    wide = np.repeat(steps.astype(np.float64), SPAN, axis=1)
    assert (np.abs(whole * wide - x) <= 0.501 * wide).all()
    assert (np.abs(whole).max() <= 127 * 256 ** (digits - 1)).all()
    spans = cells.reshape(digits, 6, -1, SPAN).sum(axis=-1)
    np.testing.assert_array_equal(sums, -ZERO * spans)
    totals = steps * whole.reshape(6, -1, SPAN).sum(axis=-1)
    np.testing.assert_allclose(of_all, totals, rtol=1e-6, atol=1e-6 * np.abs(x).max())


def test_what_has_few_bits_is_kept_exactly():
    """By hand: 1.5 and -3 are 2**21 and -2**22 steps of 1.5 * 2**-21, and so on."""
    x = np.zeros((1, SPAN), np.float32)
    x[0, :3] = 1.5, -3, 2.0**-18
    cells, _, (steps, _) = cut(x, 3)
    whole = cells[0] + 256 * cells[1] + 65536 * cells[2]
    np.testing.assert_array_equal(whole * steps[0, 0], x)


def test_nothing_at_all_has_digits_of_zero():
    """By hand."""
    cells, _, (steps, _) = cut(np.zeros((2, SPAN), np.float32), 3)
    assert not cells.any() and (steps > 0).all()


def without_digits(x):
    return in_digits(x, Constants(format="any", span=SPAN, zero=ZERO, digits=3))[1].tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e20, 1e5])
def test_what_is_not_finite_or_hides_the_rest_has_no_digits(bad):
    """By hand: of its token alone."""
    x = normal(0, 5, 64)
    x[2, 40] = bad
    assert without_digits(x) == [False, False, True, False, False]


def test_what_is_next_to_nothing_has_no_digits():
    """By hand: its step would have few bits, or none. Zeros beside it do not matter."""
    x = np.zeros((3, SPAN), np.float32)
    x[0, 3], x[1], x[2] = 1e-42, 1e-21, 1e-19
    assert without_digits(x) == [True, True, False]


def test_what_has_no_finite_sum_has_no_digits():
    """By hand: 32 times 2**115, times codes below 256, is 2**128, which no float32 holds."""
    x = np.full((2, SPAN), 2.0**115, np.float32)
    x[1] = np.nextafter(np.float32(2.0**115), np.float32(0))
    assert without_digits(x) == [True, False]


@pytest.mark.parametrize("ones, lost", [(1, False), (15, False), (16, True), (30, True)])
def test_a_span_is_cut_if_most_of_it_is_kept(ones, lost):
    """By hand: of 32 numbers one is 0, some are 1, and all others 4097; but 4096 hides no 1."""
    x = np.full((2, SPAN), 4097, np.float32)
    x[1] = 4096
    x[:, 0], x[:, 1 : ones + 1] = 0, 1
    assert without_digits(x) == [lost, False]


def test_normal_activations_are_always_cut():
    """By hand: half a million numbers, in 64 sizes."""
    x = np.ldexp(normal(5, 1024, 512), np.arange(1024)[:, None] % 64 - 32)
    assert not any(without_digits(x))


@sampled(0)
@pytest.mark.parametrize("digits, most", [(3, 5e-7), (2, 5e-5), (1, 1e-2)])
def test_what_fewer_digits_lose(digits, most):
    """By loop: root mean square over the outputs' deviation; a digit less loses 256 times that."""
    if not tile.possible(8):
        digits, most = 3, 5e-7  # there are none here: floats are multiplied
    weight, values = packed_matrix(0, 40, 512, bits=4, group=64, dtype=ml_dtypes.bfloat16)
    x = normal(1, 9, 512)
    right = x.astype(np.float64) @ values.T
    lost = np.sqrt(np.mean((product(x, weight, digits=digits) - right) ** 2)) / right.std()
    assert most / 100 < lost < most


def test_without_the_instruction_floats_are_multiplied(monkeypatch):
    """By loop: the way of processors that lack it, for codes of whole and of torn bytes."""
    monkeypatch.setattr(products, "possible", lambda zero: False)
    for bits in (3, 4):
        weight, values = packed_matrix(0, 7, 256, bits=bits, group=64, dtype=ml_dtypes.bfloat16)
        x = normal(bits, 6, 256)
        right = x.astype(np.float64) @ values.T
        np.testing.assert_allclose(product(x, weight), right, rtol=0, atol=3e-6 * right.std())
