"""Packed weights whose scales are another group's, or are kept in fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.misread import misread, of_mlx
from lockstep.parity.faults.packing import codes_of, recoded
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.precision import dtype_named

ROWS, GROUPS = 0, 1


def of_neighbour(axis: int, step: int, *, biases: bool = True) -> Rewrite:
    """Give each group the scale, and the bias, of a neighbour in its row, or of one a row away."""
    return scaled(lambda part: np.roll(part, step, axis), biases=biases)


def kept_in(name: str, *, biases: bool = True) -> Rewrite:
    """Round scales, and biases, to half precision; what is computed with them is wide."""
    half = dtype_named(name)
    return scaled(lambda part: part.astype(half).astype(np.float32), biases=biases)


def scaled(change: Callable[[np.ndarray], np.ndarray], *, biases: bool) -> Rewrite:
    def changed(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
        scales, offsets = (part.astype(np.float32) for part in (weight.scales, weight.biases))
        return replace(weight, scales=change(scales), biases=change(offsets) if biases else offsets)

    return misread(changed, of_mlx("affine"))


def top_bit_lost(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
    """Take all bits of a code but the first."""
    return recoded(weight, codes_of(weight) & ((1 << (weight.bits - 1)) - 1))
