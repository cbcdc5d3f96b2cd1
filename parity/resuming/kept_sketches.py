"""Sketches that are kept while a run goes on, so that another run goes on behind the last one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.resuming.kept_trace import KeptTrace, described
from lockstep.parity.sketches.sketch import length_of
from lockstep.parity.sketches.sketched import Entry, sound
from lockstep.parity.sketches.writing import SketchFile

FIELDS = 6  # of an entry, with its name


class KeptSketches(KeptTrace):
    """A `KeptTrace` whose tensors are the numbers of sketches; the journal has the rest of each.

    When the run is complete they become a sketched trace.
    Raises: InputError as `KeptTrace` does, or if a kept sketch cannot be one.
    """

    def __init__(self, path: str | Path, room: int, run: Mapping[str, Any], /, **about: Any):
        self.sketches = SketchFile(path, **about)
        super().__init__(path, room, run, **about)

    def say(self, **about: Any) -> None:
        super().say(**about)
        self.sketches.say(**about)

    def put(self, name: str, value: Any) -> None:
        self.sketches.prefix = self.prefix
        self.sketches(name, value)
        entry = self.sketches.entries[self.prefix + name]
        rest = [entry.dtype, [*entry.shape], entry.digest, entry.infinite, entry.nan]
        self.put_tensor(name, entry.numbers, described(entry.numbers, None) | {"sketch": rest})

    def take_tensor(self, record: dict[str, Any]) -> bool:
        dtype, shape, digest, infinite, nan = record["sketch"]
        if not sound([record["name"], *record["sketch"]], FIELDS):
            raise ValueError("sketch")
        if (record["dtype"], record["shape"]) != ("F64", [length_of(tuple(shape))]):
            raise ValueError("numbers")
        if not super().take_tensor(record):
            return False
        numbers = self.read(record)
        if not np.isfinite(numbers).all():
            raise ValueError("finite")
        entry = Entry(dtype, tuple(shape), digest, infinite, numbers, nan)
        self.sketches.keep(record["name"], entry)
        return True

    def complete(self) -> None:
        with self.sketches:
            pass
