"""What kernels write in bfloat16: float32 rounded once, subnormal numbers too."""

import numpy as np
import pytest
from llvmlite import ir

from lockstep.fast.kernels.activate import activated
from lockstep.fast.kernels.by_pairs import BFLOAT16
from lockstep.fast.kernels.lanes import FLOAT, vector
from lockstep.fast.kernels.pairs import some_tiny
from lockstep.fast.kernels.plus import summed
from tests.draws import cast, normal
from tests.tolerances import assert_same_bits

EVERY = np.arange(2**16, dtype=np.uint16).view(BFLOAT16)


@pytest.mark.parametrize("other", [0, -0.0, 1, 2**-130, -(2**-126), 3e38, np.nan, -np.inf])
def test_every_number_and_another(other):
    """By law: the sum in float32, rounded by NumPy."""
    both = EVERY.reshape(64, 1024), np.full((64, 1024), other, BFLOAT16)
    with np.errstate(all="ignore"):
        right = cast(np.add(*(one.astype(np.float32) for one in both)), BFLOAT16)
    found = summed(*both)
    assert found is not None
    assert_same_bits(found, right)


@pytest.mark.parametrize("place", [0, 7, 15, 31])
def test_a_product_that_a_float32_only_holds_in_part(place):
    """By law: the gate alone, rounded, times what is beside it in float32, rounded by NumPy."""
    gate, ones = cast(normal(0, 9, 32), BFLOAT16), np.ones((9, 32), BFLOAT16)
    alone, up = activated(gate, ones, gelu=False), ones.copy()
    assert alone is not None
    up[:, place] = 2.0 ** -np.arange(124, 133)
    found = activated(gate, up, gelu=False)
    right = cast(alone.astype(np.float32) * up.astype(np.float32), BFLOAT16)
    assert found is not None and (right[:5, place] != 0).all()
    assert_same_bits(found, right)


def test_tiny_numbers_are_found_without_an_instruction_of_their_own():
    """By law: a processor may have AVX-512 BF16 and lack what tells of them (AVX-512 DQ)."""
    module = ir.Module()
    asked = ir.Function(module, ir.FunctionType(ir.IntType(1), [vector(FLOAT)]), "asked")
    builder = ir.IRBuilder(asked.append_basic_block())
    builder.ret(some_tiny(builder, *asked.args))
    assert [function.name for function in module.functions] == ["asked"]
