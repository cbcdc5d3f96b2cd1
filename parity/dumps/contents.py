"""What one tensor of a dump holds, in figures: enough to see whether it says anything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.parts import Parts
from lockstep.parity.naming.names import is_tap, parted, sparse_layers, step_of, tap_named
from lockstep.reference.checkpoint.dtypes import DTYPES, FLOATS
from lockstep.reference.checkpoint.errors import InputError, show

TAGS = {name: tag for tag, (_, name) in DTYPES.items()}


@dataclass(frozen=True)
class Found:
    """What one tensor holds. `tap` is None if no table knows its name.

    `nan`, `infinite` and `zeros` count numbers of a float dtype; they are None of another.
    """

    name: str
    tap: str | None
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: bytes
    nan: int | None
    infinite: int | None
    zeros: int | None

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def step(self) -> int:
        return step_of(self.name)

    def to_json(self) -> dict[str, Any]:
        keys = ("name", "tap", "step", "dtype", "shape", "nan", "infinite", "zeros")
        return {key: getattr(self, key) for key in keys} | {"shape": list(self.shape)}


def measured(dump: Dump, progress: Callable[[str], None]) -> Iterator[Found]:
    """Yield what each tensor holds, in the order of the dump."""
    sparse = sparse_layers(parted(tap_named(name))[1] for name in dump.shapes)
    for name in dump.shapes:
        progress(name)
        tap = tap_named(name, sparse=sparse)
        yield found(dump, name, tap if is_tap(tap) else None)


def found(dump: Dump, name: str, tap: str | None) -> Found:
    """Look at one tensor; what is wrong with its bytes is said with its name."""
    try:
        return measure(name, tap, dump.parts(name))
    except InputError as error:
        where = error.where or f"tensor {show(name)}"
        raise InputError(error.path, error.what, where) from None


def measure(name: str, tap: str | None, tensor: Parts) -> Found:
    """Look at one tensor, a piece at a time."""
    tag = TAGS.get(tensor.dtype.name, tensor.dtype.name)
    digest, counts = hashlib.blake2b(digest_size=16), [0, 0, 0]
    for piece in tensor.pieces():
        digest.update(np.ascontiguousarray(piece).view(np.uint8).data)
        if tag in FLOATS:
            some = (np.isnan(piece), np.isinf(piece), piece == 0)
            counts = [one + int(more.sum()) for one, more in zip(counts, some, strict=True)]
    told = counts if tag in FLOATS else (None, None, None)
    return Found(name, tap, tag, tensor.shape, tensor.nbytes, digest.digest(), *told)
