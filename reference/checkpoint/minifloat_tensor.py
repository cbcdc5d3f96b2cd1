"""A weight matrix whose codes are tiny floats: MLX's modes mxfp4, mxfp8 and nvfp4."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

# mode: bits of a code, weights that share a scale. No mode has any other.
MINIFLOATS: dict[str, tuple[int, int]] = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}


@dataclass(frozen=True)
class MinifloatTensor:
    """Packed codes with one scale, a byte, for every group of columns.

    packed  uint32 (rows, columns * bits / 32): each row is one little-endian stream of codes
    scales  uint8  (rows, columns / group_size)

    The value is that of the code times that of the scale: `mode`, a key of `MINIFLOATS`, says what
    either means. The arrays are NumPy out of the reader; `fast` holds its own arrays in the same
    fields. A stack of matrices has one axis more, in front.
    """

    packed: Any
    scales: Any
    mode: str
    biases: ClassVar[None] = None  # what MLX's operations are given where a mode has no offsets

    @property
    def bits(self) -> int:
        return MINIFLOATS[self.mode][0]

    @property
    def group_size(self) -> int:
        return MINIFLOATS[self.mode][1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical (rows, columns) of the matrix."""
        return *self.packed.shape[:-1], self.packed.shape[-1] * 32 // self.bits

    def __getitem__(self, index: int) -> MinifloatTensor:
        """Return one matrix of a stack."""
        return replace(self, packed=self.packed[index], scales=self.scales[index])
