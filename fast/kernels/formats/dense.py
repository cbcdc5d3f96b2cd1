"""Floats as they are: float32, float16 or bfloat16, widened in the register."""

from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.memory import floats


def weights(of, matrix, row, group, index):
    (values,) = matrix
    return floats(values, row * values.shape[1] + group * of.group + index * WIDTH)
