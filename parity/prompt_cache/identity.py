"""Which model made a cache: a digest of its config and of every byte of its weights."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lockstep.reference.checkpoint.checkpoint import Checkpoint

SPAN = 1 << 22  # weights that are in memory at a time, in each thread
_found: WeakKeyDictionary[Checkpoint, bytes] = WeakKeyDictionary()  # of what is open


def identity(model: Any) -> str:
    """Return 32 hex digits that another model, or another adapter, does not have.

    Wherever the files lie, and however they are cut into shards. All weights are read, once for
    each checkpoint that is open.
    """
    checkpoint, adapters = model.checkpoint, model.adapters
    digest = hashlib.sha256(of_checkpoint(checkpoint))
    for path in sorted(adapters.modules):
        digest.update(repr((path, adapters.modules[path].scale)).encode())
        add(digest, adapters.modules[path])
    for path in sorted(adapters.weights):
        digest.update(path.encode())
        add(digest, adapters.weights[path])
    return digest.hexdigest()[:32]


def rank_of(model: Any) -> str | None:
    """Return which rank's heads a model has, None if it has all."""
    group = getattr(model, "group", None)
    return None if group is None else f"rank {group.rank} of {group.size}"


def of_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the digest of a base: its config, and the name, format and bytes of each tensor."""
    if checkpoint not in _found:
        whole = hashlib.sha256(repr((checkpoint.architecture, checkpoint.config)).encode())
        names = sorted(checkpoint.names)
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # hashing leaves Python
            for one in pool.map(lambda name: of_tensor(checkpoint, name), names):
                whole.update(one)
        _found[checkpoint] = whole.digest()
    return _found[checkpoint]


def of_tensor(checkpoint: Checkpoint, name: str) -> bytes:
    """Return the digest of a tensor's name, format and bytes."""
    stored = checkpoint.stored(name)
    digest = hashlib.sha256(repr((name, stored.dtype, stored.shape, stored.bits, stored.mode))
                            .encode())  # fmt: skip
    for part in spans(checkpoint, name):
        add(digest, part)
    return digest.digest()


def spans(checkpoint: Checkpoint, name: str) -> Iterator[Any]:
    """Yield a tensor's rows, packed as they are stored, as many at a time as `SPAN` holds."""
    shape = checkpoint.stored(name).shape
    if not shape or prod(shape) <= SPAN:
        yield checkpoint.tensor(name)
        return
    step = max(1, SPAN // prod(shape[1:]))
    for start in range(0, shape[0], step):
        yield checkpoint.tensor_rows(name, start, min(start + step, shape[0]))


def add(digest: Any, tensor: Any) -> None:
    """Feed the bytes of an array, or of each array of what is packed or has several."""
    if hasattr(tensor, "dtype") and hasattr(tensor, "shape") and not hasattr(tensor, "__dict__"):
        digest.update(np.ascontiguousarray(to_host(tensor)).reshape(-1).view(np.uint8).data)
        return
    for key in sorted(field.name for field in fields(tensor)):  # not what was asked of it, and kept
        value = getattr(tensor, key)
        if hasattr(value, "shape"):
            add(digest, value)
        else:
            digest.update(repr((key, value)).encode())


def to_host(array: Any) -> np.ndarray:
    from lockstep.parity.arrays import to_numpy

    return to_numpy(array)
