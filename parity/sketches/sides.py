"""A side of a comparison by sketches: a file of them, or a dump that is sketched as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.parity.dumps.pickles import is_pickle
from lockstep.parity.naming.align import IN_ORDER, Alignment, align, move_between
from lockstep.parity.sketches.sketched import SKETCH, VERSION, Entry, entry_of, read_sketches
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

NO_TENSORS = "holds sketches, not tensors: `lockstep diff` compares it with another"


@dataclass(frozen=True)
class Sketched(Dump):
    """A sketched trace, seen as a dump: names, shapes and what is said of the run, no numbers."""

    entries: Mapping[str, Entry] = field(default_factory=dict)


def is_sketched(path: Path) -> bool:
    """Say whether a file is a sketched trace, whatever its version."""
    if not path.is_file() or path.suffix in (".npz", ".json") or is_pickle(path):
        return False
    return SafetensorsFile(path).metadata.get("format") == SKETCH


def open_side(path: str | Path) -> Dump:
    """Open a trace, a dump, or a sketched trace. Raises: InputError as `open_dump` does."""
    path = Path(path)
    if not is_sketched(path):
        return open_dump(path)
    about, entries = read_sketches(path, kind=SKETCH, version=VERSION, with_nan=True)
    shapes = {name: entry.shape for name, entry in entries.items()}
    said = {key: text for key, text in about.items() if key != "tensors"}

    def read(name: str) -> np.ndarray:
        raise InputError(path, NO_TENSORS, show(name))

    return Sketched(path, shapes, read, said, entries=entries)


@dataclass(frozen=True)
class Side:
    """One side: where its taps are, and the sketch of each."""

    dump: Dump
    found: Alignment

    def entry(self, tap: str, like: tuple[int, ...]) -> Entry | None:
        """Return the sketch of a tap; None if its numbers lie in another order than in `like`.

        Tensors are moved before they are sketched; a sketch cannot be.
        """
        name = self.found.names[tap]
        if not isinstance(self.dump, Sketched):
            return entry_of(self.found.parts(tap, like))
        entry = self.dump.entries[name]
        move = move_between(entry.shape, like)
        return entry if move is None or move in IN_ORDER else None

    def shape(self, tap: str) -> tuple[int, ...]:
        return self.dump.shapes[self.found.names[tap]]


def side_of(dump: Dump) -> Side:
    return Side(dump, align(dump))
