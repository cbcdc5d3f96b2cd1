"""What is not compiled: parts of kernels by themselves, and a kernel for arrays that are alike."""

import numpy as np
import pytest
from numba import typeof

from lockstep.fast.kernels.attend import in_full
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.parts import Part, inlined


@inlined
def doubled(value):
    return 2 * value


@kernel
def double(place, values):
    values[place] = doubled(values[place])


def test_no_machine_code_is_made_of_a_part_alone():
    """By hand: the kernel does what its part says, and Numba's engine does not know the part."""
    values = np.arange(4)
    double(1, 4, values)
    assert values.tolist() == [0, 2, 4, 6]
    made = doubled.overloads or compiled_anew()
    (one,) = made.values()
    assert isinstance(one.library, Part)
    engine = one.target_context.codegen()._engine
    assert not engine.is_symbol_defined(one.fndesc.mangled_name)


def compiled_anew():
    """Compile the part where the kernel was found in its cache."""
    doubled.compile((typeof(1),))
    return doubled.overloads


@pytest.mark.parametrize("shape", [(1, 5), (3, 5)])
def test_a_mask_that_is_only_read_has_no_type_of_its_own(shape):
    """By law: what is seen stays; a row that stands for several, too."""
    seen = np.array([[True, False, True, True, False]])
    fixed = np.broadcast_to(seen, (1, 5))
    assert not fixed.flags.writeable
    found = in_full(fixed, shape)
    np.testing.assert_array_equal(found, np.broadcast_to(seen, shape))
    assert typeof(found) == typeof(in_full(seen.copy(), shape))
