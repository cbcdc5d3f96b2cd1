"""MLX on a device."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from lockstep.fast import ops
from lockstep.fast.blocks.repack import AFFINE, repacked
from lockstep.fast.caches import affine_mlx, int8_mlx, turbo_mlx
from lockstep.reference.checkpoint.adapters import Adapter
from lockstep.reference.checkpoint.block_tensor import BlockTensor, Packed
from lockstep.reference.checkpoint.checkpoint import NO_ROOMS, Checkpoint, Rooms
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor


class MlxBackend:
    """The namespace `fast.ops`, and how arrays get to the device and back."""

    name = "mlx"
    ops = ops
    int8 = int8_mlx
    affine = affine_mlx
    turbo = turbo_mlx
    zeros = staticmethod(mx.zeros)
    heads_at_once = None  # its graph is put together before anything runs
    runs_ahead = True

    def layers(self) -> None:
        """There is nothing to do in one go: a step is one graph."""

    def __init__(self, dtype: str, device: str | None):
        if device is not None:
            set_device(device)
        self.dtype = getattr(mx, dtype)

    def weight(self, tensor: np.ndarray | Packed) -> Any:
        """Copy a stored tensor over, in the dtype that is computed in; a packed one stays packed.

        Its scales are rounded to that dtype too, where the reference keeps them as stored. Block
        formats that MLX's own packing can hold are repacked.
        """
        if isinstance(tensor, BlockTensor):
            if tensor.format not in AFFINE:
                return replace(tensor, blocks=mx.array(tensor.blocks))
            tensor = repacked(tensor)
        if isinstance(tensor, MinifloatTensor):  # its scales are codes too
            return replace(tensor, packed=mx.array(tensor.packed), scales=mx.array(tensor.scales))
        if isinstance(tensor, QuantizedTensor):
            scales, biases = self.weight(tensor.scales), self.weight(tensor.biases)
            return replace(tensor, packed=mx.array(tensor.packed), scales=scales, biases=biases)
        return from_numpy(tensor).astype(self.dtype)

    def held(self, tensor: np.ndarray | Packed) -> Any:
        """Keep a stored tensor as it was read: a thread that reads must not make arrays of MLX."""
        return tensor

    def given(self, held: np.ndarray | Packed) -> Any:
        """Copy over what is held."""
        return self.weight(held)

    def rooms(self, checkpoint: Checkpoint) -> Rooms:
        """Leave memory to who reads: all of it is copied to the device."""
        return NO_ROOMS

    def joined(self, weights: dict[str, Any]) -> dict[Any, Any]:
        """Leave matrices apart."""
        return {}

    def adapter(self, adapter: Adapter) -> Adapter:
        """Copy an adapter over. It stays in float32, as mlx-lm and PEFT keep it."""
        lengths = None if adapter.magnitude is None else mx.array(adapter.magnitude)
        return replace(adapter, a=mx.array(adapter.a), b=mx.array(adapter.b), magnitude=lengths)

    def put(self, array: np.ndarray) -> mx.array:
        """Copy a NumPy array over as it is."""
        return from_numpy(array)

    def has_gpu(self) -> bool:
        """Tell whether operations run on a GPU, in this process as it is set."""
        return mx.default_device().type != mx.cpu

    def host(self, array: mx.array) -> np.ndarray:
        """Copy a result to NumPy. This waits for the array."""
        return to_numpy(array)

    def argmax(self, logits: mx.array) -> mx.array:
        """Return the id of the largest logit, the lowest of equals."""
        return mx.argmax(logits, axis=-1)

    def entropy(self, logits: mx.array, *, heat: float, floor: float) -> mx.array:
        """Return how unsure each row of logits is, in nats: (M, V) -> (M,), summed in float32.

        NaN if a row holds NaN or +inf, or nothing above -inf.
        """
        wide = logits.astype(mx.float32) / heat
        shifted = wide - wide.max(axis=-1, keepdims=True)
        powers = mx.exp(shifted)
        total = summed(powers)[:, None]
        probs = powers / total
        if floor:
            return -summed(probs * mx.log(probs + floor))
        surprise = mx.log(total) - mx.where(powers > 0, shifted, 0)
        return summed(probs * surprise)

    def evaluate(self, *arrays: mx.array) -> None:
        """Compute what is still a graph. Weights and tokens pass here, and nothing else."""
        mx.eval(*arrays)

    def begin(self, *arrays: mx.array) -> None:
        """Begin to compute, and wait for nothing."""
        mx.async_eval(*arrays)


def from_numpy(array: np.ndarray) -> mx.array:
    """Copy a NumPy array to MLX, bfloat16 by its bits. No file is ever handed to MLX."""
    if array.dtype.name == "bfloat16":
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array)


def to_numpy(array: mx.array) -> np.ndarray:
    """Copy an array of MLX to NumPy, bfloat16 by its bits. This waits for it."""
    if array.dtype != mx.bfloat16:
        return np.array(array)
    import ml_dtypes

    return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)


def summed(x: mx.array) -> mx.array:
    """Sum each row of (M, V), in parts of 256: on a CPU, MLX adds one after another.

    Of 50,000 numbers of 1 / 50,000 that would make 1.0006.
    """
    whole = x.shape[-1] // 256 * 256
    rest = x[:, whole:].sum(axis=-1)
    return rest if not whole else x[:, :whole].reshape(len(x), -1, 256).sum(axis=-1).sum(-1) + rest


def set_device(device: str) -> None:
    """Make MLX use "cpu" or "gpu" from here on. Raises: InputError if the machine lacks it."""
    kinds = {"cpu": mx.cpu, "gpu": mx.gpu}
    if device not in kinds or not mx.is_available(kinds[device]):
        raise InputError("device", f"{device}, but MLX has no such device here")
    mx.set_default_device(mx.Device(kinds[device]))
