"""A weight matrix in the packed form that MLX's quantisation writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class QuantizedTensor:
    """Packed codes with a scale and an offset for every group of columns.

    packed  uint32 (rows, columns * bits / 32): each row is one little-endian stream of codes
    scales  float  (rows, columns / group_size)
    biases  float  (rows, columns / group_size): the offset of a group, no layer's bias

    The value of a code q is `scale * q + bias`. The arrays are NumPy out of the reader; `fast`
    holds its own arrays in the same fields. A stack of matrices has one axis more, in front.
    """

    packed: Any
    scales: Any
    biases: Any
    bits: int
    group_size: int
    mode: str

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The logical (rows, columns) of the matrix."""
        return *self.packed.shape[:-1], self.packed.shape[-1] * 32 // self.bits

    def __getitem__(self, index: int) -> QuantizedTensor:
        """Return one matrix of a stack."""
        parts = {name: getattr(self, name)[index] for name in ("packed", "scales", "biases")}
        return replace(self, **parts)
