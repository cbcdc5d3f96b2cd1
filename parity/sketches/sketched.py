"""Sketches of the tensors of a run in one small safetensors file, in the order of computation.

The file has one tensor, `sketches`: those of all tensors, one after the other, as `sketch.py` makes
them. Its metadata has `format`, `version`, what is said of the run, and `tensors`: a JSON list of
entries [name, dtype, shape, digest of the bytes, digest of where it is infinite], and in a sketched
trace how many numbers are NaN. A golden trace is such a file of another format, and holds no NaN.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.dumps.parts import Parts, parts_of
from lockstep.parity.dumps.trace_file import TAGS
from lockstep.parity.sketches.sketch import Sketching, length_of, pieces_of
from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

SKETCH, VERSION = "lockstep-sketch", "1"
DIGEST = 16  # hexadecimal digits
DIGITS = re.compile(rf"[0-9a-f]{{{DIGEST}}}")
MOST_AXES = 8


@dataclass(frozen=True)
class Entry:
    """What is kept of one tensor. `infinite` is empty if none of it is infinite."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    infinite: str
    numbers: np.ndarray
    nan: int = 0


def entry_of(tensor: np.ndarray | Parts) -> Entry:
    """Sketch one tensor, a piece at a time."""
    tensor = parts_of(tensor)
    made, whole, nan = Sketching(tensor), hashlib.sha256(), 0
    infinite, zeros = None, 0  # the digest begins with as many zeros as come before it
    for start, piece in pieces_of(tensor):
        whole.update(little(piece))
        if piece.dtype.kind not in "iub":
            wide = piece.astype(np.float64)
            nan += int(np.count_nonzero(np.isnan(wide)))
            places = np.isinf(wide)
            if infinite is None and places.any():
                infinite = hashlib.sha256(bytes(zeros))
            if infinite is not None:
                infinite.update(np.where(places, np.sign(wide), 0).astype(np.int8).data)
            zeros += piece.size
        made.add(start, piece)
    where = infinite.hexdigest()[:DIGEST] if infinite is not None else ""
    digest = whole.hexdigest()[:DIGEST]
    return Entry(TAGS[tensor.dtype.name], tensor.shape, digest, where, made.numbers, nan)


def little(piece: np.ndarray) -> Any:
    """Return the bytes of numbers, the lowest first."""
    plain = piece.astype(piece.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(plain).reshape(-1).view(np.uint8).data


def write_sketches(
    path: Path, about: Mapping[str, str], entries: Mapping[str, Entry], *, with_nan: bool
) -> None:
    """Put a file of sketches in place of what was there, whole or not at all."""
    wide = any(entry.dtype == "F64" for entry in entries.values())
    kind, dtype = ("F64", np.dtype("<f8")) if wide else ("F32", np.dtype("<f4"))
    numbers = np.concatenate([entry.numbers for entry in entries.values()]).astype(dtype)
    listed = [
        [name, one.dtype, list(one.shape), one.digest, one.infinite, *[one.nan] * with_nan]
        for name, one in entries.items()
    ]
    said = {**about, "tensors": json.dumps(listed, separators=(",", ":"))}
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    planned = {"sketches": Planned(kind, numbers.shape, lambda: numbers)}
    try:
        write_safetensors(part, planned, metadata=said, done=lambda name: None)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_sketches(
    path: Path, *, kind: str, version: str, with_nan: bool
) -> tuple[Mapping[str, str], dict[str, Entry]]:
    """Read a file of sketches that nobody vouches for: what it says of the run, and the entries.

    Raises: InputError if it is of another format or version, or its parts do not fit together.
    """
    file = SafetensorsFile(path)
    about = file.metadata
    if about.get("format") != kind or about.get("version") != version:
        found = f"{show(about.get('format'))} version {show(about.get('version'))}"
        raise InputError(path, f"is {found}, but should be {kind} version {version}")
    listed = index_of(path, about.get("tensors", ""), 5 + with_nan)
    numbers = sketches_of(file, sum(length_of(tuple(one[2])) for one in listed))
    entries: dict[str, Entry] = {}
    begin = 0
    for name, dtype, shape, bits, infinite, *nan in listed:
        end = begin + length_of(tuple(shape))
        entries[name] = Entry(dtype, tuple(shape), bits, infinite, numbers[begin:end], *nan)
        begin = end
    return about, entries


def index_of(path: Path, text: str, length: int) -> list[Any]:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list) or not listed or not all(sound(one, length) for one in listed):
        raise InputError(path, "tensors must be a JSON list of entries", "__metadata__")
    if len({entry[0] for entry in listed}) != len(listed):
        raise InputError(path, "lists one tensor twice", "__metadata__")
    return listed


def sound(entry: Any, length: int) -> bool:
    """Say whether one entry of the index is what `write_sketches` would write."""
    if not isinstance(entry, list) or len(entry) != length:
        return False
    name, dtype, shape, bits, infinite, *nan = entry
    if not isinstance(shape, list) or len(shape) > MOST_AXES:
        return False
    return (
        all(isinstance(text, str) for text in (name, dtype, bits, infinite))
        and dtype in TAGS.values()
        and all(type(size) is int and 0 <= size < 1 << 40 for size in shape)
        and DIGITS.fullmatch(bits) is not None
        and (not infinite or DIGITS.fullmatch(infinite) is not None)
        and all(type(count) is int and count >= 0 for count in nan)
    )


def sketches_of(file: SafetensorsFile, count: int) -> np.ndarray:
    entry = file.entries.get("sketches")
    if entry is None or len(file.entries) != 1 or entry.dtype not in ("F32", "F64"):
        raise InputError(file.path, "must hold one tensor, sketches, in F32 or F64")
    if entry.shape != (count,):
        what = f"sketches of shape {list(entry.shape)}, but the index needs [{count}]"
        raise InputError(file.path, what)
    numbers = file.read("sketches").astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InputError(file.path, "holds a sketch that is not finite")
    return numbers
