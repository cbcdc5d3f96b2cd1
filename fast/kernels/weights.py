"""The one question that kernels ask a stored matrix."""

from typing import Any

from numba.extending import overload

from lockstep.fast.kernels.formats import FORMATS


def weights(*_: Any) -> Any:
    """Return sixteen weights: `weights(of, matrix, row, group, index)`, see `formats`."""
    raise NotImplementedError


@overload(weights, jit_options={"forceinline": True, "error_model": "numpy"})
def weights_of_format(of, matrix, row, group, index):
    return FORMATS[of.format].weights
