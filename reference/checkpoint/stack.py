"""A stack of matrices that is read one at a time: the experts of a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lockstep.reference.checkpoint.block_tensor import Packed


@dataclass(frozen=True)
class Stack:
    """The matrices of one tensor, (experts, outputs, inputs).

    `stack[3]` has `read` bring that matrix from the disk, and nothing is kept.
    """

    shape: tuple[int, ...]
    read: Callable[[int], np.ndarray | Packed]

    def __getitem__(self, index: int) -> np.ndarray | Packed:
        return self.read(index)
