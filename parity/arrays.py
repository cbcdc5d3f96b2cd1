"""Any framework's array as a NumPy array."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from typing import Any

import numpy as np


def to_numpy(array: Any) -> np.ndarray:
    """Return a NumPy array of the same values and precision, bfloat16 included.

    Takes NumPy and MLX arrays and torch tensors; a lazy array is computed.
    """
    if isinstance(array, np.ndarray):
        return array
    home = type(array).__module__.partition(".")[0]
    if home == "torch":
        return from_torch(array)
    if home == "mlx":
        return from_mlx(array)
    return np.asarray(array)


def from_torch(tensor: Any) -> np.ndarray:
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes

    return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)


def from_mlx(array: Any) -> np.ndarray:
    import mlx.core as mx

    if array.dtype != mx.bfloat16:
        return np.array(array)
    import ml_dtypes

    return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
