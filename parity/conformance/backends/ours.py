"""Our own backends: `reference`, `mlx` and `cpu`."""

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.conformance.case import Case, SeenKeys, call
from lockstep.reference import ops as reference_ops
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor


class Ours:
    """A namespace of operations of this repository, and how arguments get to it.

    Raises: InputError for a name that is none of ours, or a dtype that it has not.
    """

    def __init__(self, name: str, dtype: str):
        if name == "reference":
            self.name, self.ops, self.to_device = name, reference_ops, unchanged
            return
        from lockstep.fast.backends import backend_named

        backend = backend_named(name, dtype=dtype, device=None)
        self.name, self.ops = backend.name, backend.ops
        self.to_device = to_mlx if self.name == "mlx" else unchanged

    def __call__(self, case: Case) -> np.ndarray:
        values = {name: self.to_device(self.own(value)) for name, value in case.values.items()}
        answer = call(self.ops, case.op, values)
        return answer.mask if hasattr(answer, "kind") else to_numpy(answer)

    def own(self, value: Any) -> Any:
        """Let the backend make its own form of a mask."""
        if not isinstance(value, SeenKeys):
            return value
        return self.ops.causal_mask(value.queries, value.keys, window=value.window)

    def close(self) -> None:
        """Nothing was opened."""


def unchanged(value: Any) -> Any:
    return value


def to_mlx(value: Any) -> Any:
    """Copy an argument to the device; what fast/shapes.py keeps on the host stays there."""
    import mlx.core as mx

    from lockstep.fast.backends.mlx import from_numpy

    if isinstance(value, BlockTensor):
        return replace(value, blocks=mx.array(value.blocks))
    if isinstance(value, MinifloatTensor):
        return replace(value, packed=mx.array(value.packed), scales=mx.array(value.scales))
    if isinstance(value, QuantizedTensor):
        parts = (value.packed, value.scales, value.biases)
        packed, scales, biases = map(from_numpy, parts)
        return replace(value, packed=packed, scales=scales, biases=biases)
    if isinstance(value, np.dtype):
        return getattr(mx, value.name)
    on_host = not isinstance(value, np.ndarray) or value.dtype.kind in "iu"
    return value if on_host or value.dtype == np.float64 else from_numpy(value)
