"""The ranks of a run, and what they tell each other: sums, and parts put behind each other.

Whatever the backend, arrays travel through `mx.distributed`. What travels is counted.
"""

import errno
import os
import sys
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from lockstep.fast.backends.mlx import from_numpy, to_numpy
from lockstep.fast.parallel.lost import STARTER, TAKEN
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.parallel.rules import SUMMED

BIND = f"Couldn't bind socket (error: {errno.EADDRINUSE})"  # another program has the port


@dataclass
class Traffic:
    """How often ranks told each other something, and how many bytes each one gave."""

    sums: int = 0
    summed_bytes: int = 0
    gathers: int = 0
    gathered_bytes: int = 0


class Group:
    """All ranks, of which this process is one."""

    def __init__(self, group: Any):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.traffic = Traffic()

    def all_sum(self, part: Array) -> Array:
        """Add the parts of all ranks; every rank gets the sum. Rounding: in the parts' dtype."""
        self.traffic.sums += 1
        self.traffic.summed_bytes += part.nbytes
        if not isinstance(part, np.ndarray):
            return mx.distributed.all_sum(part, group=self.group)
        return to_numpy(mx.distributed.all_sum(from_numpy(part), group=self.group))

    def all_gather(self, part: Array) -> Array:
        """Put the parts of all ranks, which have one shape, behind each other on a new first axis.

        (...) -> (ranks, ...)
        """
        self.traffic.gathers += 1
        self.traffic.gathered_bytes += part.nbytes
        if not isinstance(part, np.ndarray):
            return mx.distributed.all_gather(part[None], group=self.group)
        return to_numpy(mx.distributed.all_gather(from_numpy(part)[None], group=self.group))


class SummingOps:
    """A namespace of operations in which experts, whose inner numbers are dealt out, are summed."""

    def __init__(self, ops: Any, group: Group):
        self.ops, self.group = ops, group

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.ops, name)
        if name not in SUMMED:
            return operation
        return lambda *given, **told: self.group.all_sum(operation(*given, **told))


def launched() -> bool:
    """Tell whether something started this process as one of several ranks."""
    return "MLX_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ


def join(ranks: int) -> Group:
    """Meet the other ranks, which waits for them.

    Raises: InputError if they cannot be met, or are not as many as they should be. SystemExit, in
    a rank that can be started again, if another program has taken its port.
    """
    try:
        group = Group(mx.distributed.init(strict=True))
    except RuntimeError as error:
        if STARTER in os.environ and BIND in str(error):
            sys.exit(TAKEN)
        raise InputError("--tensor-parallel", f"the ranks did not meet: {error}") from None
    if group.size != ranks:
        raise InputError("--tensor-parallel", f"{ranks}, but {group.size} ranks were started")
    return group
