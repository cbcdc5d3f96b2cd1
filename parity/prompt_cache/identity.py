"""Which model made a cache: a digest of its config, its tensors' formats and some of their rows."""

import hashlib
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.checkpoint import Checkpoint

ROWS = 3  # of each tensor: the first, the middle one and the last


def identity(model: Any) -> str:
    """Return 32 hex digits that another model, or another adapter, does not have.

    Wherever the files lie. Of each tensor three rows are read: weights that differ elsewhere alone
    are not told apart.
    """
    digest = hashlib.sha256()
    checkpoint, adapters = model.checkpoint, model.adapters
    digest.update(repr((checkpoint.architecture, checkpoint.config)).encode())
    for name in sorted(checkpoint.names):
        stored = checkpoint.stored(name)
        digest.update(repr((name, stored.dtype, stored.shape, stored.bits, stored.mode)).encode())
        add(digest, rows_of(checkpoint, name))
    for path in sorted(adapters.modules):
        digest.update(repr((path, adapters.modules[path].scale)).encode())
        add(digest, adapters.modules[path])
    for path in sorted(adapters.weights):
        digest.update(path.encode())
        add(digest, adapters.weights[path])
    return digest.hexdigest()[:32]


def rows_of(checkpoint: Checkpoint, name: str) -> Any:
    """Read a few rows of a tensor, packed as it is stored."""
    rows = checkpoint.stored(name).shape[0] if checkpoint.stored(name).shape else 0
    if not rows:
        return checkpoint.tensor(name)
    return checkpoint.tensor_at(name, sorted({0, rows // 2, rows - 1}))


def add(digest: Any, tensor: Any) -> None:
    """Feed the bytes of an array, or of each array of what is packed or has several."""
    if hasattr(tensor, "dtype") and hasattr(tensor, "shape") and not hasattr(tensor, "__dict__"):
        digest.update(np.ascontiguousarray(to_host(tensor)).reshape(-1).view(np.uint8).data)
        return
    for key, value in sorted(vars(tensor).items()):
        if hasattr(value, "shape"):
            add(digest, value)
        else:
            digest.update(repr((key, value)).encode())


def to_host(array: Any) -> np.ndarray:
    from lockstep.parity.arrays import to_numpy

    return to_numpy(array)
