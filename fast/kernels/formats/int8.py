"""Keys and values of a cache in whole numbers from -127 to 127: `scale * code`.

The arrays are the codes and the scales, one for each `group` dimensions.
"""

from functools import cache

from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.lanes import WIDTH, multiplied, splat, to_floats
from lockstep.fast.kernels.memory import scalar, signed_octets


@cache
def layout(group: int) -> Constants:
    return Constants(format="int8", group=group, step=group)


def weights(of, matrix, row, group, index):
    codes, scales = matrix
    place = row * scales.shape[1] + group
    some = to_floats(signed_octets(codes, place * of.step + index * WIDTH))
    return multiplied(some, splat(scalar(scales, place)))
