"""A stack of matrices that is read one at a time: the experts of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lockstep.reference.checkpoint.block_tensor import Packed
    from lockstep.reference.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class Stack:
    """The matrices of one tensor of a checkpoint, (experts, outputs, inputs).

    `stack[3]` reads that matrix from the disk, and nothing is kept.
    """

    checkpoint: Checkpoint
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.checkpoint.stored(self.name).shape

    def __getitem__(self, index: int) -> np.ndarray | Packed:
        return self.checkpoint.tensor_rows(self.name, index, index + 1)[0]
