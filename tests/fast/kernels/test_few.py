"""One to three tokens and codes, 64 at a time: `test_product.py` has what holds for any product."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lockstep.fast.cpu.dequantize import dequantize
from lockstep.fast.kernels import few, kernel
from lockstep.fast.kernels.few import fits
from lockstep.fast.kernels.product import product as made
from lockstep.fast.kernels.product import stored
from lockstep.fast.kernels.tile import possible
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from tests.draws import normal, packed_matrix
from tests.fast.kernels.test_product import block_matrix
from tests.sampled import sampled
from tests.tolerances import assert_close

MLX = [(2, 64), (4, 32), (4, 64), (4, 128)]
BLOCKED = ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """So that a format is compiled once."""
    monkeypatch.setattr(kernel, "SMALL", 2**62)


def product(x: np.ndarray, weight: Any) -> np.ndarray:
    return np.asarray(made(x, weight))


def whole(weight: Any, columns: int) -> bool:
    """Whether the codes of a matrix are multiplied as whole numbers."""
    form = stored(weight)
    return form is not None and fits(form[0], columns)


def matrix_of(name, rows, columns) -> tuple[Any, np.ndarray]:
    """Return a random matrix in a format, by its name or MLX's bits and group; and its values."""
    if isinstance(name, str):
        return block_matrix(name, rows, columns)
    bits, group = name
    return packed_matrix(3, rows, columns, bits=bits, group=group, dtype=ml_dtypes.bfloat16)


def plain(weight):
    return dequantize(weight, rows=slice(None), dtype=np.dtype(np.float32))


def picked(weight):
    """Return what ones pick out of a matrix: its weights."""
    around = stored(weight)[0].numbers
    assert whole(weight, 512) == possible(around["zero"] * around["shared"])
    return np.concatenate([product(one[None], weight) for one in np.eye(512, dtype=np.float32)]).T


@sampled(1, "Q6_K")
@pytest.mark.parametrize("name", BLOCKED)
def test_each_weight_of_a_block_is_exact(name):
    """By law: a one picks a weight out, and nothing rounds but the weight itself, at its end."""
    weight, _ = block_matrix(name, 3, 512)
    np.testing.assert_array_equal(picked(weight), plain(weight))


@sampled(1, "name2")
@pytest.mark.parametrize("name", MLX)
def test_each_weight_of_mlx_is_near(name):
    """By law: its offset is rounded beside a code that was counted from the middle."""
    weight, values = matrix_of(name, 3, 512)
    scales, offsets = (part.astype(np.float64) for part in (weight.scales, weight.biases))
    most = np.repeat(np.abs(offsets) + (2 ** name[0] - 1) * np.abs(scales), name[1], axis=1)
    assert (np.abs(picked(weight) - values) <= 2.0**-23 * most).all()


@sampled(2, "Q8_0")
@pytest.mark.parametrize("name", [*MLX, *BLOCKED])
def test_tokens_are_multiplied_alike_alone_and_together(name):
    """By law, to the bit; and near the sum in float64, whatever the sizes of spans."""
    weight, values = matrix_of(name, 35, 1536)
    x = normal(1, 3, 1536) * np.ldexp(np.float32(1), np.arange(1536) // 64 % 20 - 10)
    x[1] = 0
    together = product(x, weight)
    alone = np.concatenate([product(x[token : token + 1], weight) for token in range(3)])
    np.testing.assert_array_equal(together, alone)
    assert not together[1].any()
    assert_close(together, x.astype(np.float64) @ values.T, kind="sum")


@sampled(0)
def test_scales_are_read_as_they_are_stored():
    """By law: a narrower float is a float32; the other tests here have bfloat16.

    Of 18 groups sixteen are read in one go, and two among lanes that are 0.
    """
    weight, _ = packed_matrix(0, 7, 1152, bits=4, group=64)
    parts = [weight.scales.astype(np.float16), weight.biases.astype(np.float16)]
    wide = [part.astype(np.float32) for part in parts]
    x, found = normal(2, 2, 1152), []
    for scales, biases in (parts, wide):
        found.append(product(x, replace(weight, scales=scales, biases=biases)))
    np.testing.assert_array_equal(*found)


def test_a_width_that_64_codes_do_not_fill():
    """By loop: it is multiplied in floats."""
    assert not whole(matrix_of("Q4_0", 5, 96)[0], 96)
    assert not whole(matrix_of((2, 64), 5, 128)[0], 128)
    weight, values = matrix_of((4, 64), 5, 192)
    assert not whole(weight, 192)
    x = normal(0, 2, 192)
    assert_close(product(x, weight), x.astype(np.float64) @ values.T, kind="sum")


def test_without_the_instruction_floats_are_multiplied(monkeypatch):
    """By loop: the way of processors that lack it."""
    monkeypatch.setattr(few, "possible", lambda zero: False)
    weight, values = matrix_of((4, 64), 7, 256)
    assert not whole(weight, 256)
    x = normal(0, 1, 256)
    assert_close(product(x, weight), x.astype(np.float64) @ values.T, kind="sum")


@sampled(1, "Q6_K")
@pytest.mark.parametrize("name", BLOCKED)
def test_what_lies_behind_the_last_row_plays_no_part(name):
    """By law: it is not the matrix's own."""
    weight, _ = block_matrix(name, 2, 256)
    found = []
    for behind in (0, 255):
        room = np.full(weight.blocks.size + 64, behind, np.uint8)
        room[: weight.blocks.size] = weight.blocks.ravel()
        view = room[: weight.blocks.size].reshape(weight.blocks.shape)
        found.append(product(normal(0, 1, 256), BlockTensor(view, name)))
    np.testing.assert_array_equal(*found)
    assert np.isfinite(found[0]).all()


@pytest.mark.parametrize("name", [(4, 64), "Q8_0"])
def test_how_far_off_it_is(name):
    """By loop: no more than the products of floats, over the deviation of the outputs."""
    weight, values = matrix_of(name, 256, 1024)
    x = normal(4, 1, 1024)
    right = x.astype(np.float64) @ values.T
    off = np.abs(product(x, weight) - right) / right.std()
    assert 0 < np.sqrt(np.mean(off**2)) < 4e-7 and off.max() < 2e-6
