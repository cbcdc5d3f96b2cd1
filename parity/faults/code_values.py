"""Which numbers the codes of MLX's affine groups are taken to stand for: signs, zeros, biases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.packing import codes_of, recoded
from lockstep.parity.faults.tensors import MEANT, Change, reweighted
from lockstep.reference.checkpoint.checkpoint import StoredFormat
from lockstep.reference.checkpoint.quantized import QuantizedTensor


def meant(change: Change, when: Callable[[StoredFormat], bool]) -> Rewrite:
    """Change which numbers codes stand for, by the scales and biases that the port takes."""
    return reweighted(change, when, turn=MEANT)


def signed_codes(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
    """Read codes as two's complement: the same as flipping the top bit and taking it off."""
    top = 1 << (weight.bits - 1)
    scales = weight.scales.astype(np.float32)
    biases = weight.biases.astype(np.float32) - top * scales
    return replace(recoded(weight, codes_of(weight) ^ top), scales=scales, biases=biases)


def centred_codes(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
    """Read s (q - 8), as GGUF's Q4_0 does, and drop the bias."""
    scales = weight.scales.astype(np.float32)
    return replace(weight, scales=scales, biases=-scales * (1 << (weight.bits - 1)))


def one_step(sign: int) -> Callable[[Any, QuantizedTensor], QuantizedTensor]:
    """Move the zero of every group by one code."""

    def moved(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
        scales = weight.scales.astype(np.float32)
        biases = weight.biases.astype(np.float32) + sign * scales
        return replace(weight, scales=scales, biases=biases)

    return moved


def biased(times: int) -> Callable[[Any, QuantizedTensor], QuantizedTensor]:
    """Add the bias of every group so many times."""
    return lambda ops, weight: replace(
        weight, biases=weight.biases * weight.biases.dtype.type(times)
    )


def zero_points(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
    scales = weight.scales.astype(np.float32)
    return replace(weight, scales=scales, biases=-scales * weight.biases.astype(np.float32))
