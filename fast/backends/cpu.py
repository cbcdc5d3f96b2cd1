"""NumPy on the processor."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.fast import cpu, kernels
from lockstep.fast.backends.activations import operations
from lockstep.fast.caches import affine_cpu, int8_cpu, turbo_cpu
from lockstep.fast.joined import Joined, Paths, join_all, rooms_for
from lockstep.fast.kernels.again import zeros
from lockstep.reference.checkpoint.adapters import Adapter
from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.checkpoint.checkpoint import NO_ROOMS, Checkpoint, Rooms
from lockstep.reference.checkpoint.quantized import QuantizedTensor


class CpuBackend:
    """The namespace `fast.cpu`, and how arrays get there: they are there already."""

    name = "cpu"
    ops: Any = cpu
    int8 = int8_cpu
    affine = affine_cpu
    turbo = turbo_cpu
    zeros = staticmethod(zeros)
    runs_ahead = False  # what it computes is there

    def __init__(self, dtype: str, activations: str = "float32"):
        self.ops, self.activations = operations(activations), activations
        self.dtype = half(dtype) if dtype == "bfloat16" else np.dtype(dtype)

    def weight(self, tensor: np.ndarray | Packed) -> Any:
        """Take a stored tensor to the dtype that is computed in; a packed one stays packed.

        Its scales are rounded to that dtype, where the reference keeps them as stored. Narrower
        floats of a matrix stay as they are, if there are kernels that widen them as they read.
        """
        if isinstance(tensor, QuantizedTensor):
            scales, biases = (
                one if self.widened_later(one) else self.cast(one)
                for one in (tensor.scales, tensor.biases)
            )
            return replace(tensor, scales=scales, biases=biases)
        if isinstance(tensor, Packed) or self.widened_later(tensor):
            return tensor
        return self.cast(tensor)

    def widened_later(self, tensor: np.ndarray) -> bool:
        narrow = tensor.ndim > 1 and tensor.dtype.itemsize == 2
        return narrow and self.dtype == np.float32 and kernels.available()

    def held(self, tensor: np.ndarray | Packed) -> Any:
        """Take a stored tensor to what is kept of it while its expert is streamed."""
        return self.weight(tensor)

    def given(self, held: Any) -> Any:
        """Return what is computed with: what is held."""
        return held

    def rooms(self, checkpoint: Checkpoint) -> Rooms:
        """Return where matrices are to be read that `joined` puts into one."""
        return rooms_for(checkpoint) if kernels.available() else NO_ROOMS

    def joined(self, weights: dict[str, Any]) -> dict[Paths, Joined]:
        """Put matrices of one input into one, where they are stored alike and kernels read them.

        BLAS may round a row otherwise beside other rows.
        """
        if not kernels.available():
            return {}
        from lockstep.fast.kernels.product import always_here

        return join_all(weights, always_here)

    @property
    def heads_at_once(self) -> Callable[..., Any] | None:
        """What norms and turns heads in one go, for `Run.turned_heads`; None without kernels."""
        return kernels.module("heads").normalized_and_turned if kernels.available() else None

    def layers(self) -> Any:
        """Return what runs one model's layers in one go; None without kernels."""
        return kernels.module("layers").Layers() if kernels.available() else None

    def cast(self, tensor: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite
            return tensor.astype(self.dtype, copy=False)

    def adapter(self, adapter: Adapter) -> Adapter:
        """Take an adapter as it was read: it stays in float32."""
        return adapter

    def put(self, array: np.ndarray) -> np.ndarray:
        """Take a NumPy array over as it is."""
        return array

    def host(self, array: np.ndarray) -> np.ndarray:
        return array

    def argmax(self, logits: np.ndarray) -> np.ndarray:
        """Return the id of the largest logit, the lowest of equals."""
        return logits.argmax(axis=-1)

    def entropy(self, logits: np.ndarray, *, heat: float, floor: float) -> np.ndarray:
        """Return how unsure each row of logits is, in nats: (M, V) -> (M,), summed in float32.

        NaN if a row holds NaN or +inf, or nothing above -inf.
        """
        wide = logits.astype(np.float32) / np.float32(heat)
        with np.errstate(invalid="ignore", under="ignore"):
            shifted = wide - wide.max(axis=-1, keepdims=True)
            powers = np.exp(shifted)
            total = powers.sum(axis=-1, keepdims=True)
            probs = powers / total
            if floor:
                return -(probs * np.log(probs + np.float32(floor))).sum(axis=-1)
            surprise = np.log(total) - np.where(powers > 0, shifted, 0)
            return (probs * surprise).sum(axis=-1)

    def evaluate(self, *arrays: np.ndarray) -> None:
        """Nothing is lazy here."""


def half(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))
