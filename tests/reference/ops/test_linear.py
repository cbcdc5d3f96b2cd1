from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.checkpoint.quantized import QuantizedTensor
from tests.draws import cast, normal, pack, packed_matrix, seeds, sizes, whole
from tests.ops_backends import DTYPES
from tests.rounding import nearest
from tests.sampled import sampled
from tests.tolerances import assert_close, assert_same_bits

PACKINGS = [*product((2, 3, 4, 5, 6, 8), (32, 64, 128))]


def by_loop(x, weight) -> np.ndarray:
    """Multiply and add one by one, in Python's floats."""
    out = np.zeros((*x.shape[:-1], len(weight)))
    for b, l, n in np.ndindex(out.shape):  # noqa: E741
        for k in range(x.shape[-1]):
            out[b, l, n] += float(x[b, l, k]) * float(weight[n, k])
    return out


@settings(max_examples=30)
@given(seed=seeds, batch=sizes, length=sizes, rows=sizes, columns=st.integers(1, 20))
def test_follows_its_formula(precision, seed, batch, length, rows, columns):
    """By loop."""
    backend, dtype = precision
    x = normal(seed, batch, length, columns, dtype=dtype)
    weight = normal(seed + 1, rows, columns, dtype=dtype)
    found = backend.linear(x, weight, None)
    assert_close(found, by_loop(x, weight), kind="sum", backend=backend)


@settings(max_examples=30)
@given(seed=seeds, columns=st.integers(1, 20))
def test_whole_numbers_are_exact(precision, seed, columns):
    """By loop: every order of summing small whole numbers gives the same bits in every dtype."""
    backend, dtype = precision
    x, weight = whole(seed, 2, 3, columns, dtype=dtype), whole(seed + 1, 4, columns, dtype=dtype)
    found = backend.linear(x, weight, whole(seed + 2, 4, dtype=dtype))
    exact = by_loop(x, weight) + whole(seed + 2, 4)
    assert_close(found, exact, kind="exact")


@settings(max_examples=20)
@given(seed=seeds)
def test_is_additive(precision, seed):
    """By law: linear(x + y) = linear(x) + linear(y), and linear(-x) = -linear(x)."""
    backend, dtype = precision
    x, y = (whole(seed + i, 2, 3, 7, dtype=dtype, bound=2) for i in range(2))
    weight = whole(seed + 2, 5, 7, dtype=dtype, bound=2)
    parts = backend.add(backend.linear(x, weight, None), backend.linear(y, weight, None))
    assert_close(backend.linear(backend.add(x, y), weight, None), parts, kind="exact")
    opposite = backend.linear(-x, weight, None)
    assert_close(opposite, -backend.linear(x, weight, None).astype(np.float64), kind="exact")


@sampled(6, "cpu-8-64")
@pytest.mark.parametrize("bits, group", PACKINGS)
def test_packed_weights(backend, bits, group):
    """By loop: the exact values of the codes, at every width and group size that MLX has."""
    x = normal(bits, 1, 2, 128)
    weight, exact = packed_matrix(group, 3, 128, bits=bits, group=group, dtype=DTYPES["bfloat16"])
    bias = normal(1, 3)
    found = backend.linear(x, weight, bias)
    assert_close(found, by_loop(x, exact) + bias, kind="sum", backend=backend)


@sampled(7, "cpu-float32-bfloat16")
@pytest.mark.parametrize("scales", ["float32", "bfloat16", "float16"])
def test_packed_weights_in_every_dtype(precision, scales):
    """By loop: the result has the dtype of x, whatever the scales have."""
    backend, dtype = precision
    x = normal(0, 1, 2, 64, dtype=dtype)
    weight, exact = packed_matrix(1, 3, 64, bits=4, group=32, dtype=DTYPES[scales])
    found = backend.linear(x, weight, None)
    assert found.dtype == dtype
    assert_close(found, by_loop(x, exact), kind="sum", backend=backend)


def test_the_bias_is_added_after_the_rounding(precision):
    """By hand: 257 has no bfloat16, 2049 no float16; each is rounded before 1 is added."""
    backend, dtype = precision
    big = {"bfloat16": 257, "float16": 2049}.get(dtype.name, 3)
    x, weight = cast([[[1, big - 1]]], dtype), cast([[1, 1]], dtype)
    exact = nearest(nearest(big, dtype) + 1, dtype).reshape(1, 1, 1)
    assert_close(backend.linear(x, weight, cast([1], dtype)), exact, kind="exact")


def test_weight_and_bias_take_the_dtype_of_x(backend):
    """By hand: 70000 has no float16, so weight and bias are infinite before they are used."""
    x, one = np.ones((1, 1, 1), np.float16), np.ones((1, 1), np.float32)
    infinite = np.full((1, 1, 1), np.inf, np.float16)
    assert_same_bits(backend.linear(x, 70000 * one, None), infinite)
    assert_same_bits(backend.linear(x, one, 70000 * one[0]), infinite)


def test_where_a_finer_weight_is_rounded(backend):
    """By hand: 1 + 2 ** -12 is 1 in float16; fast/cpu alone takes it as it is, and says so."""
    x = np.full((1, 1, 2), 1, np.float16)
    weight = np.array([[1 + 2**-12, -1]], np.float32)
    answer = 2**-12 if backend.name == "cpu" else 0
    assert_close(backend.linear(x, weight, None), [[[answer]]], kind="exact")


def test_overflow_is_quiet(backend):
    """By hand: 300 * 300 has no float16, and there is no warning."""
    x = np.full((1, 1, 1), 300, np.float16)
    assert_same_bits(backend.linear(x, x[0], None), np.full((1, 1, 1), np.inf, np.float16))


@pytest.mark.parametrize("bad, answer", [(np.nan, np.nan), (np.inf, np.inf), (-np.inf, -np.inf)])
def test_what_is_not_finite_propagates(backend, bad, answer):
    """By hand: to every output of its token, to no other token; times 0 it is NaN."""
    x, weight = np.array([[[bad, 1], [1, 1]]], np.float32), np.array([[1, 1], [0, 1]], np.float32)
    expected = np.array([[[answer, np.nan], [2, 1]]], np.float32)
    assert_same_bits(backend.linear(x, weight, None), expected)


@pytest.mark.parametrize("shape", [(0, 2), (1, 0), (0, 0)])
@pytest.mark.parametrize("packed", [False, True])
def test_no_tokens(backend, shape, packed):
    """By hand: nothing in, nothing out. MLX's own packed product would end the process here."""
    weight = packed_matrix(0, 3, 32, bits=4, group=32)[0] if packed else normal(0, 3, 32)
    assert backend.linear(normal(1, *shape, 32), weight, normal(2, 3)).shape == (*shape, 3)


def test_no_inputs(precision):
    """By hand: a sum of nothing is 0, and the bias is added to it."""
    backend, dtype = precision
    x, weight, bias = (normal(0, *shape, dtype=dtype) for shape in ((1, 2, 0), (3, 0), (3,)))
    assert_same_bits(backend.linear(x, weight, None), np.zeros((1, 2, 3), dtype))
    assert_same_bits(backend.linear(x, weight, bias), np.broadcast_to(bias, (1, 2, 3)))


@pytest.mark.parametrize("packed", [False, True])
def test_no_outputs(backend, packed):
    """By hand: a matrix of no rows."""
    weight = packed_matrix(0, 1, 32, bits=4, group=32)[0] if packed else normal(0, 0, 32)
    if packed:
        weight = rows(weight, 0)
    assert backend.linear(normal(1, 1, 2, 32), weight, None).shape == (1, 2, 0)


def rows(weight, stop: int):
    """Keep the first rows of a packed matrix."""
    parts = {name: getattr(weight, name)[:stop] for name in ("packed", "scales", "biases")}
    return replace(weight, **parts)


@pytest.mark.parametrize("packed", [False, True])
def test_widths_must_agree(backend, packed):
    """By law: a row of the weight has one number for each input."""
    weight = packed_matrix(0, 3, 64, bits=4, group=32)[0] if packed else normal(0, 3, 64)
    with pytest.raises(ValueError, match="x has width 32, but the weight takes 64"):
        backend.linear(normal(1, 1, 2, 32), weight, None)


@pytest.mark.parametrize("packed", [False, True])
def test_more_rows_than_a_tile(backend, packed):
    """By law: each row is its own sum, across the seams at which a large weight is cut."""
    count = 4100  # the reference's tile has 4096 rows
    dense = whole(0, count, 32)
    weight = as_packed(dense) if packed else dense
    found = backend.linear(np.ones((1, 1, 32), np.float32), weight, None)
    assert_close(found[0, 0], dense.astype(np.float64).sum(axis=1), kind="exact")


def as_packed(dense):
    """Pack whole numbers from -3 to 3: scale 1, offset -3, 4 bits."""
    one = np.ones((len(dense), 1), np.float32)
    return QuantizedTensor(pack(dense + 3, 4), one, -3 * one, 4, 32, "affine")
