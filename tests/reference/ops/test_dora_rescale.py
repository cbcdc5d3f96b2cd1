import math

import numpy as np
import pytest
from hypothesis import given, settings

from tests.draws import normal, packed_matrix, seeds, sizes
from tests.rounding import nearest
from tests.tolerances import assert_close, assert_same_bits


def by_loop(y, weight, bias, a, b, magnitude, scale) -> np.ndarray:
    """Measure each row of the adapted weight, one number after another."""
    out = np.zeros(y.shape)
    for n, row in enumerate(weight):
        square = 0.0
        for k, value in enumerate(row):
            added = sum(float(b[n, r]) * float(a[r, k]) for r in range(len(a)))
            square += (float(value) + scale * added) ** 2
        out[..., n] = y[..., n] * (float(magnitude[n]) / math.sqrt(square)) + float(bias[n])
    return out


@settings(max_examples=30)
@given(seed=seeds, length=sizes, rows=sizes, columns=sizes, rank=sizes)
def test_follows_its_formula(backend, seed, length, rows, columns, rank):
    """By loop."""
    y, weight, bias = normal(seed, 1, length, rows), normal(seed, rows, columns), normal(seed, rows)
    a, b, magnitude = normal(seed + 1, rank, columns), normal(2, rows, rank), normal(3, rows)
    found = backend.dora_rescale(y, weight, bias, a, b, magnitude, scale=0.5)
    exact = by_loop(y, weight, bias, a, b, magnitude, 0.5)
    assert_close(found, exact, kind="sum", backend=backend)


def test_its_rounding(precision):
    """By hand: 3-4-5. The quotient 8/5 is rounded, then the product with 7, then the sum."""
    backend, dtype = precision
    y, weight = np.full((1, 1, 1), 7, dtype), np.array([[1, 4]], dtype)
    a, b = np.array([[1, 0]], np.float32), np.array([[1]], np.float32)
    bias, magnitude = np.full(1, 0.25, dtype), np.array([8], np.float32)
    found = backend.dora_rescale(y, weight, bias, a, b, magnitude, scale=2.0)
    product = nearest(7 * nearest(8 / 5, dtype), dtype)
    exact = nearest(product + 0.25, dtype).reshape(1, 1, 1)
    assert_close(found, exact, kind="pointwise", backend=backend)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_packed_weights(backend, bits):
    """By loop: the exact values of the codes."""
    weight, exact = packed_matrix(bits, 5, 64, bits=bits, group=32)
    y, bias = normal(0, 1, 2, 5), normal(1, 5)
    adapter = normal(2, 2, 64), normal(3, 5, 2), normal(4, 5)
    found = backend.dora_rescale(y, weight, bias, *adapter, scale=2.0)
    assert_close(found, by_loop(y, exact, bias, *adapter, 2.0), kind="sum", backend=backend)


def test_the_own_length_of_a_row_changes_nothing(backend):
    """By law: with B = 0 and the lengths that the rows have, 1 is multiplied. 3-4-5 is exact."""
    weight = np.array([[3, 4], [5, 12]], np.float32)
    y, none = normal(0, 2, 3, 2), np.zeros((2, 1), np.float32)
    lengths = np.array([5, 13], np.float32)
    found = backend.dora_rescale(y, weight, None, normal(1, 1, 2), none, lengths, scale=20.0)
    assert_same_bits(found, y)


def test_a_row_of_length_0(backend):
    """By hand: 0 / 0 and 1 / 0, without a warning, and no other row is touched."""
    weight = np.array([[0, 0], [0, 0], [3, 4]], np.float32)
    zero = np.zeros((1, 2), np.float32), np.zeros((3, 1), np.float32)
    found = backend.dora_rescale(np.ones((1, 1, 3), np.float32), weight, None, *zero,
                                 np.array([0, 1, 10], np.float32), scale=1.0)  # fmt: skip
    assert_same_bits(found, np.array([[[np.nan, np.inf, 2]]], np.float32))


def test_more_rows_than_a_tile(backend):
    """By law: each row has its own length, across the seams at which a large weight is cut."""
    rows = 4100  # the reference's tile has 4096
    weight, b = normal(0, rows, 2), normal(1, rows, 1)
    a, magnitude = normal(2, 1, 2), normal(3, rows)
    found = backend.dora_rescale(
        np.ones((1, 1, rows), np.float32), weight, None, a, b, magnitude, scale=1.0
    )
    lengths = np.sqrt(np.square(weight.astype(np.float64) + b.astype(np.float64) @ a).sum(axis=1))
    assert_close(found[0, 0], magnitude / lengths, kind="sum", backend=backend)
