"""Write a safetensors file whose tensors are made one at a time, when it is their turn."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from lockstep.reference.checkpoint.dtypes import item_size

Entry = tuple[str, tuple[int, ...]]  # dtype and shape


@dataclass(frozen=True)
class Planned:
    """A tensor that is known by type and shape, and `make` brings its values."""

    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return nbytes(self.dtype, self.shape)


def write_safetensors(
    path: Path,
    tensors: Mapping[str, Planned],
    *,
    metadata: Mapping[str, str],
    done: Callable[[str], object],
) -> None:
    """Write a new file; `done(name)` is called after each tensor. One is in memory at a time.

    Wide types come first, as the safetensors package has it, so that every tensor is aligned.
    Raises: ValueError if a tensor is not what was planned, FileExistsError if there is a file.
    """
    names = sorted(tensors, key=lambda name: (-item_size(tensors[name].dtype), name))
    entries = {name: (tensors[name].dtype, tensors[name].shape) for name in names}
    with path.open("xb") as out:
        out.write(header(entries, metadata))
        for name in names:
            out.write(_bytes(name, tensors[name]))
            done(name)
        out.flush()
        os.fsync(out.fileno())


def header(entries: Mapping[str, Entry], metadata: Mapping[str, str] | None) -> bytes:
    """Return what stands before the tensors, which then follow in the order of `entries`."""
    described: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    place = 0
    for name, (dtype, shape) in entries.items():
        span = [place, place + nbytes(dtype, shape)]
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": span}
        place = span[1]
    data = json.dumps(described, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes that a tensor takes in the file."""
    return item_size(dtype) * prod(shape)


def _bytes(name: str, planned: Planned) -> memoryview:
    made = np.ascontiguousarray(planned.make()).reshape(-1).view(np.uint8)
    if made.size != planned.nbytes:
        raise ValueError(f"tensor {name!r}: {made.size} bytes, but planned were {planned.nbytes}")
    return made.data
