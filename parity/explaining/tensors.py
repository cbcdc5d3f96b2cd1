"""Bring tensors of the checkpoint, and keep as many of them as memory is set aside for."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from math import prod
from typing import Any

from lockstep.parity.graph import Tensor
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.stack import Stack

KEPT = 768 << 20  # bytes
MATRICES = 64 << 20  # bytes of one stack


class Tensors:
    """A reader for evaluators: those that were asked for last need not be read again."""

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint = checkpoint
        self.kept: OrderedDict[Tensor, tuple[Any, int]] = OrderedDict()
        self.size = 0

    def __call__(self, tensor: Tensor) -> Any:
        if tensor in self.kept:
            self.kept.move_to_end(tensor)
            return self.kept[tensor][0]
        value, size = self.fetched(tensor), self.bytes_of(tensor)
        self.kept[tensor] = value, size
        self.size += size
        while self.size > KEPT and len(self.kept) > 1:
            self.size -= self.kept.popitem(last=False)[1][1]
        return value

    def fetched(self, tensor: Tensor) -> Any:
        if tensor.stacked:
            return kept_in_memory(self.checkpoint.stack(tensor.name))
        if tensor.rows is not None:
            return self.checkpoint.tensor_at(tensor.name, tensor.rows)
        return self.checkpoint.tensor(tensor.name)

    def bytes_of(self, tensor: Tensor) -> int:
        """Return what a tensor takes; a stack is read one matrix at a time, and takes nothing."""
        stored = self.checkpoint.stored(tensor.name)
        if tensor.stacked:
            return 0
        if tensor.rows is None:
            return stored.nbytes
        return stored.nbytes * len(tensor.rows) // max(stored.shape[0], 1)


def kept_in_memory(stack: Stack) -> Stack:
    """Return a stack that reads a matrix once, as long as it was asked for lately."""
    count = MATRICES // max(4 * prod(stack.shape[1:]), 1)
    return Stack(stack.shape, lru_cache(max(count, 1))(stack.read))
