"""What a comparison has judged, kept in a journal, so that another run need not judge it again."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from lockstep import __version__
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.histogram import Histogram
from lockstep.parity.judging.result import Tap
from lockstep.parity.resuming.journal import Journal
from lockstep.reference.checkpoint.errors import InputError

KEYS = {one.name for one in fields(Tap)}
TEXTS = {"name": False, "status": False, "op": True, "place": True}  # and whether they may be None
NONSENSE = "holds a record that is no judgement; it is left as it is"


class Kept:
    """Judgements by the part of a comparison that they are of. This one keeps nothing."""

    count = 0

    def taps(self, part: str) -> list[Tap] | None:
        """Return what an earlier run judged of a part, None if it did not come so far."""
        return None

    def add(self, part: str, taps: Sequence[Tap]) -> None:
        """Keep what was judged of a part."""


NOTHING = Kept()


class KeptTaps(Kept):
    """Judgements in a journal at `path`, of the two sides and the model that it was begun with.

    Raises: InputError if the file is none of ours, of another comparison, or in use.
    """

    def __init__(self, path: str | Path, left: Dump, right: Dump, model: Any):
        self.journal = Journal(path, comparison(left, right, model))
        try:
            self.known = dict(map(self.judged, self.journal.records))
        except BaseException:
            self.journal.close()
            raise
        self.count = sum(map(len, self.known.values()))

    def judged(self, record: dict[str, Any]) -> tuple[str, list[Tap]]:
        try:
            part, taps = record["part"], record["taps"]
            if type(part) is str:
                return part, [tap_of(said) for said in taps]
        except (AttributeError, KeyError, TypeError, ValueError):
            pass
        raise InputError(self.journal.path, NONSENSE)

    def taps(self, part: str) -> list[Tap] | None:
        return self.known.get(part)

    def add(self, part: str, taps: Sequence[Tap]) -> None:
        self.journal.add({"part": part, "taps": [asdict(tap) for tap in taps]})
        self.count += len(taps)

    def __enter__(self) -> KeptTaps:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Delete the journal when its result has been handed over, else leave it."""
        if kind is None:
            self.journal.remove()
        else:
            self.journal.close()


def tap_of(said: dict[str, Any]) -> Tap:
    """Return a tap as it was, to every bit. Raises: ValueError, TypeError or KeyError if none."""
    figures = [said[key] for key in KEYS - {"shape", "histogram"} - TEXTS.keys()]
    texts = [said[key] for key in TEXTS if said[key] is not None or not TEXTS[key]]
    if said.keys() != KEYS or not all(type(one) is str for one in texts):
        raise ValueError("keys")
    if not all(one is None or type(one) in (int, float) for one in figures):
        raise ValueError("figures")
    spread = said["histogram"]
    if spread is not None:
        spread = Histogram(**spread | {"counts": tuple(spread["counts"])})
    return Tap(**said | {"shape": tuple(said["shape"]), "histogram": spread})


def comparison(left: Dump, right: Dump, model: Any) -> dict[str, Any]:
    """Return what decides on the result of a comparison."""
    found = {
        "journal": "lockstep diff", "version": 1, "left": side(left), "right": side(right),
        "model": None, "lockstep": __version__, "numpy": np.__version__,
        "machine": platform.machine(),
    }  # fmt: skip
    if model is not None:
        from lockstep.parity.prompt_cache.identity import identity

        found["model"] = identity(model)
    return found


def side(dump: Dump) -> str:
    """Return a digest of what a dump says, and of when and how large its files are.

    A file that is moved is the same one; one that was written anew is not.
    """
    folder = dump.path.is_dir()
    files = sorted(dump.path.iterdir()) if folder else [dump.path]
    states = [(file.name if folder else "", file.stat()) for file in files]
    kept = [(name, state.st_size, state.st_mtime_ns) for name, state in states]
    told = sorted(dump.about.items()), sorted(dump.shapes.items()), kept
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]
