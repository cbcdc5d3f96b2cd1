"""Products of whole numbers by the matrix unit: bit by bit what the registers give.

Where the processor has no such unit, registers are compared with themselves; test_product.py holds
every product, by whatever makes it here, against float64.
"""

import numpy as np
import pytest

from lockstep.fast.cpu.linear import multiplied
from lockstep.fast.kernels import digits as digits_module
from lockstep.fast.kernels import kernel, matrix_unit
from lockstep.fast.kernels.by_digits import TILES
from lockstep.fast.kernels.digits import cutting, with_digits
from tests.draws import normal, packed_matrix
from tests.fast.kernels.test_product import block_matrix
from tests.ops_backends import DTYPES
from tests.sampled import sampled


@pytest.fixture
def in_registers(monkeypatch):
    """Return what multiplies in registers, whatever the processor has."""

    def call(*given, **options):
        with monkeypatch.context() as patched:
            patched.setattr(digits_module.matrix_unit, "possible", lambda name: False)
            forget()
            found = multiplied(*given, **options)
        forget()
        return found

    return call


def forget():
    with_digits.cache_clear()
    cutting.cache_clear()


@sampled(0)
@pytest.mark.parametrize("bits, digits", [(2, None), (4, None), (4, 1), (6, 2), (8, None)])
def test_whole_numbers_are_the_same(bits, digits, in_registers):
    weight = packed_matrix(0, 45, 256, bits=bits, group=64)[0]
    for tokens in (4, 5, 16, 23):
        x = normal(tokens, tokens, 256)
        found = multiplied(x, weight, None, digits=digits)
        np.testing.assert_array_equal(found, in_registers(x, weight, None, digits=digits))


def test_on_all_cores(monkeypatch, in_registers):
    """By law: each thread takes tiles of its own."""
    weight, _ = packed_matrix(0, 200, 512, bits=4, group=64, dtype=DTYPES["bfloat16"])
    x = normal(1, 40, 512)
    alone = in_registers(x, weight, None, digits=None)
    monkeypatch.setattr(kernel, "SMALL", 0)
    for _ in range(5):
        np.testing.assert_array_equal(multiplied(x, weight, None, digits=None), alone)


@sampled(0)
@pytest.mark.parametrize("name, digits", [("Q8_0", None), ("Q8_0", 1), ("Q4_K", None)])
def test_spans_that_half_fill_its_tiles_are_the_same(name, digits, in_registers):
    """Rows of more than one place, of which the last has less than a block."""
    weight = block_matrix(name, 139, 256)[0]
    for tokens in (4, 21):
        x = normal(tokens, tokens, 256)
        found = multiplied(x, weight, None, digits=digits)
        np.testing.assert_array_equal(found, in_registers(x, weight, None, digits=digits))


@sampled(0)
def test_more_tokens_than_pass_by_at_once(in_registers):
    """By law: those of later tiles, and the last few, are as those of the first."""
    weight, x = packed_matrix(0, 70, 128, bits=4, group=64)[0], normal(2, TILES * 16 + 19, 128)
    found = multiplied(x, weight, None, digits=1)
    np.testing.assert_array_equal(found, in_registers(x, weight, None, digits=1))


def test_a_unit_takes_spans_that_fill_its_tiles_or_half_of_them():
    """By hand: 64 columns or 32; sixteen rows of tokens' digits."""
    unit = matrix_unit.possible("amx-int8")
    for span, digits, tokens in ((64, 3, 5), (64, 1, 16), (32, 3, 5), (16, 3, 4)):
        right = (tokens, 1) if unit and span > 16 else (4, 0)
        assert digits_module.together(span, digits) == right


@pytest.mark.parametrize("system, machine", [("darwin", "x86_64"), ("linux", "aarch64")])
def test_other_systems_are_not_asked(system, machine, monkeypatch):
    monkeypatch.setattr(matrix_unit.sys, "platform", system)
    monkeypatch.setattr(matrix_unit.platform, "machine", lambda: machine)
    assert not matrix_unit.granted.__wrapped__()
