"""The questions that kernels ask a stored matrix."""

from typing import Any

import numpy as np
from numba.extending import overload

from lockstep.fast.kernels.formats import FORMATS
from lockstep.fast.kernels.lanes import fma, splat, to_floats

INLINED: Any = {"forceinline": True, "error_model": "numpy"}


def weights(*_: Any) -> Any:
    """Return sixteen weights: `weights(of, matrix, row, group, index)`, see `formats`."""
    raise NotImplementedError


def codes(*_: Any) -> Any:
    """Return sixteen codes."""
    raise NotImplementedError


def levels(*_: Any) -> Any:
    """Return the scale and the offset of sixteen codes."""
    raise NotImplementedError


def many_codes(*_: Any) -> Any:
    """Return 64 codes: `many_codes(of, matrix, row, vector)`, see `formats`."""
    raise NotImplementedError


def lane_levels(*_: Any) -> Any:
    """Return the scales and the offsets of 64 codes, each lane's own."""
    raise NotImplementedError


def group_levels(*_: Any) -> Any:
    """Return the levels of sixteen groups, see `formats`."""
    raise NotImplementedError


@overload(weights, jit_options=INLINED)
def weights_of_format(of, matrix, row, group, index):
    return getattr(FORMATS[of.format], "weights", of_codes)


@overload(codes, jit_options=INLINED)
def codes_of_format(of, matrix, row, group, index):
    return FORMATS[of.format].codes


@overload(levels, jit_options=INLINED)
def levels_of_format(of, matrix, row, group, index):
    return FORMATS[of.format].levels


@overload(many_codes, jit_options=INLINED)
def many_codes_of_format(of, matrix, row, vector):
    return FORMATS[of.format].many_codes


@overload(lane_levels, jit_options=INLINED)
def lane_levels_of_format(of, matrix, row, vector):
    return getattr(FORMATS[of.format], "lane_levels", all_aside)


@overload(group_levels, jit_options=INLINED)
def group_levels_of_format(of, matrix, row, group):
    return getattr(FORMATS[of.format], "group_levels", not_aside)


def all_aside(of, matrix, row, vector):
    """Stand for what Numba compiles and no format with `group_levels` comes to."""
    return splat(np.float32(0)), splat(np.float32(0))


def not_aside(of, matrix, row, group):
    """Stand for what Numba compiles and no format without such levels comes to."""
    return splat(np.float32(0)), splat(np.float32(0))


def of_codes(of, matrix, row, group, index):
    scale, offset = levels(of, matrix, row, group, index)
    return fma(to_floats(codes(of, matrix, row, group, index)), splat(scale), splat(offset))
