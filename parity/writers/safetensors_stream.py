"""Write a safetensors file whose tensors are made one at a time, when it is their turn."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lockstep.reference.checkpoint.dtypes import item_size


@dataclass(frozen=True)
class Planned:
    """A tensor that is known by type and shape, and `make` brings its values."""

    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return item_size(self.dtype) * int(np.prod(self.shape, dtype=object))


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
    head = _header(names, tensors, metadata)
    with path.open("xb") as out:
        out.write(len(head).to_bytes(8, "little") + head)
        for name in names:
            out.write(_bytes(name, tensors[name]))
            done(name)
        out.flush()
        os.fsync(out.fileno())


def _header(names: list[str], tensors: Mapping[str, Planned], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    place = 0
    for name in names:
        one = tensors[name]
        span = [place, place + one.nbytes]
        header[name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": span}
        place = span[1]
    data = json.dumps(header, separators=(",", ":")).encode()
    return data + b" " * (-len(data) % 8)


def _bytes(name: str, planned: Planned) -> memoryview:
    made = np.ascontiguousarray(planned.make()).reshape(-1).view(np.uint8)
    if made.size != planned.nbytes:
        raise ValueError(f"tensor {name!r}: {made.size} bytes, but planned were {planned.nbytes}")
    return made.data
