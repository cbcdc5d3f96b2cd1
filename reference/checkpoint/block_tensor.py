"""A tensor in the block formats of GGUF, as it lies in the file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor

# A row is a chain of blocks; format: weights in a block, bytes of a block.
BLOCKS: dict[str, tuple[int, int]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "IQ4_NL": (32, 18),
    "MXFP4": (32, 17),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}


@dataclass(frozen=True)
class BlockTensor:
    """Rows of blocks of one format, which is a key of `BLOCKS`.

    blocks  uint8 (..., bytes of a row): what each byte means is told in `reference/blocks`

    The array is NumPy out of the reader; `fast` holds its own in the same field.
    """

    blocks: Any
    format: str

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The logical shape: the bytes of a row counted as weights."""
        weights, size = BLOCKS[self.format]
        return *self.blocks.shape[:-1], self.blocks.shape[-1] // size * weights

    def __getitem__(self, index: Any) -> BlockTensor:
        """Return some of the rows, or one matrix of a stack."""
        return replace(self, blocks=self.blocks[index])


# Every form in which a matrix may be packed.
Packed = QuantizedTensor | MinifloatTensor | BlockTensor
