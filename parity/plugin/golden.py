"""A golden trace: a sketch of every tensor of a run, in one small safetensors file.

The file has one tensor, `sketches`: those of all tensors, one after the other, as `sketch.py` makes
them. Its metadata has `format`, `version`, `dtype`, `tokens` if they are known, and `tensors`: a
JSON list in the order of computation, of entries [name, dtype, shape, digest of the bytes, digest
of where it is infinite].
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.diffing.plain import not_judged, rounding, so_far, unfit
from lockstep.parity.dumps.dtype import computed_in
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.trace_file import TAGS
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.judging.result import Tap
from lockstep.parity.plugin.sketch import apart, length_of, place, sketch
from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

FORMAT, VERSION = "lockstep-golden", "1"
DIGEST = 16  # hexadecimal digits
DIGITS = re.compile(rf"[0-9a-f]{{{DIGEST}}}")
MOST_AXES = 8
# A part of an axis may be off by so many times what the whole may: right ports show up to 1.2.
PART = 4.0


@dataclass(frozen=True)
class Entry:
    """One tensor of a golden trace. `infinite` is empty if all of it is finite."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    infinite: str
    numbers: np.ndarray


@dataclass(frozen=True)
class Golden:
    """The sketches of a run, by the names of its tensors, in its order."""

    path: Path
    dtype: str
    tokens: str | None
    entries: Mapping[str, Entry]


def entry_of(array: np.ndarray) -> Entry:
    """Sketch one tensor."""
    infinite = np.isinf(array.astype(np.float64)) if array.dtype.kind not in "iub" else None
    where = ""
    if infinite is not None and infinite.any():
        where = digest(np.where(infinite, np.sign(array.astype(np.float64)), 0).astype(np.int8))
    return Entry(TAGS[array.dtype.name], array.shape, digest(array), where, sketch(array))


def digest(array: np.ndarray) -> str:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    data = np.ascontiguousarray(little).reshape(-1).view(np.uint8)
    return hashlib.sha256(data.data).hexdigest()[:DIGEST]


def golden_of(dump: Dump, path: Path) -> Golden:
    """Sketch a dump. Raises: InputError if it holds NaN, which agrees with nothing."""
    entries: dict[str, Entry] = {}
    for name in dump.shapes:
        array = dump.read(name)
        if array.dtype.kind not in "iub" and np.isnan(array.astype(np.float64)).any():
            raise InputError(dump.path, "holds NaN, which can be no golden", name)
        entries[name] = entry_of(array)
    return Golden(path, floating(computed_in(dump)[0]), dump.about.get("tokens"), entries)


def floating(dtype: str) -> str:
    """Return the dtype to judge in: of whole numbers alone nothing rounds."""
    return dtype if dtype in EPSILONS else "float32"


def write_golden(golden: Golden) -> None:
    """Put a golden trace in place of what was there, whole or not at all."""
    wide = any(entry.dtype == "F64" for entry in golden.entries.values())
    kind, dtype = ("F64", np.dtype("<f8")) if wide else ("F32", np.dtype("<f4"))
    numbers = np.concatenate([entry.numbers for entry in golden.entries.values()]).astype(dtype)
    listed = [
        [name, entry.dtype, list(entry.shape), entry.digest, entry.infinite]
        for name, entry in golden.entries.items()
    ]
    about = {"format": FORMAT, "version": VERSION, "dtype": golden.dtype}
    about |= {} if golden.tokens is None else {"tokens": golden.tokens}
    about["tensors"] = json.dumps(listed, separators=(",", ":"))
    part = golden.path.with_name(f".{golden.path.name}.part")
    part.unlink(missing_ok=True)
    planned = {"sketches": Planned(kind, numbers.shape, lambda: numbers)}
    try:
        write_safetensors(part, planned, metadata=about, done=lambda name: None)
        part.replace(golden.path)
    finally:
        part.unlink(missing_ok=True)


def read_golden(path: Path) -> Golden:
    """Read a golden trace that nobody vouches for.

    Raises: InputError if it is no golden of this version, or its parts do not fit together.
    """
    file = SafetensorsFile(path)
    about = file.metadata
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        found = f"{show(about.get('format'))} version {show(about.get('version'))}"
        raise InputError(path, f"is {found}, but should be {FORMAT} version {VERSION}")
    if about.get("dtype") not in EPSILONS:
        raise InputError(path, f"dtype {show(about.get('dtype'))}", "__metadata__")
    listed = index_of(path, about.get("tensors", ""))
    numbers = sketches_of(file, sum(length_of(tuple(shape)) for _, _, shape, _, _ in listed))
    entries: dict[str, Entry] = {}
    begin = 0
    for name, dtype, shape, bits, infinite in listed:
        end = begin + length_of(tuple(shape))
        entries[name] = Entry(dtype, tuple(shape), bits, infinite, numbers[begin:end])
        begin = end
    return Golden(path, about["dtype"], about.get("tokens"), entries)


def index_of(path: Path, text: str) -> list[Any]:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list) or not listed or not all(map(sound, listed)):
        raise InputError(path, "tensors must be a JSON list of entries", "__metadata__")
    if len({entry[0] for entry in listed}) != len(listed):
        raise InputError(path, "lists one tensor twice", "__metadata__")
    return listed


def sound(entry: Any) -> bool:
    """Say whether one entry of the index is what `write_golden` would write."""
    if not isinstance(entry, list) or len(entry) != 5:
        return False
    name, dtype, shape, bits, infinite = entry
    if not isinstance(shape, list) or len(shape) > MOST_AXES:
        return False
    return (
        all(isinstance(text, str) for text in (name, dtype, bits, infinite))
        and dtype in TAGS.values()
        and all(type(size) is int and 0 <= size < 1 << 40 for size in shape)
        and DIGITS.fullmatch(bits) is not None
        and (not infinite or DIGITS.fullmatch(infinite) is not None)
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


def judged(name: str, port: np.ndarray, entry: Entry, dtype: str, *, stored: bool) -> Tap:
    """Return "ok" if rounding in `dtype` may be all that changed since, else "differs".

    `stored` says whether it must also be stored as it was.
    """
    if prod(entry.shape) != port.size or port.shape != entry.shape:
        return unfit(name, port, f"shape {list(port.shape)}, but the golden's {list(entry.shape)}")
    if stored and TAGS[port.dtype.name] != entry.dtype:
        said = f"stored as {TAGS[port.dtype.name]}, but in the golden as {entry.dtype}"
        return unfit(name, port, said)
    unknown = int(np.isnan(port.astype(np.float64)).sum())
    if unknown:  # it agrees with nothing, itself included
        return unfit(name, port, f"{unknown} of {port.size} are NaN")
    if digest(port) == entry.digest and TAGS[port.dtype.name] == entry.dtype:
        return Tap(name, None, port.shape, "ok", max_abs=0.0, rms_rel=0.0)
    if port.dtype.kind in "iub":
        return located(name, port, entry, 0.0)
    if entry_of(port).infinite != entry.infinite:
        return unfit(name, port, "infinite values elsewhere than in the golden")
    return located(name, port, entry, rounding(dtype))


def located(name: str, port: np.ndarray, entry: Entry, limit: float) -> Tap:
    """Compare the sketches of the whole and of each part; no comparison passes by NaN."""
    far = apart(entry.numbers, sketch(port), entry.shape)
    with np.errstate(all="ignore"):
        parts_ok = far.parts <= (PART * limit) ** 2 * far.size
    whole_ok = far.rms_rel is not None and far.rms_rel <= limit
    close = limit > 0 and whole_ok and bool(parts_ok.all())
    close = close or (limit > 0 and far.rms_rel is None and not far.parts.any())
    where = None if close else f"in {place(worst(far.parts, far.size, parts_ok), port.shape)}"
    return so_far(name, port, far, where)


def worst(parts: np.ndarray, size: np.ndarray, parts_ok: np.ndarray) -> np.ndarray:
    """Choose the parts to show: those beyond their limit, else all that carry the difference."""
    return ~parts_ok if not parts_ok.all() else parts > 0.5 * parts.mean()


def compared(
    golden: Golden, dump: Dump, dtype: str, progress: Callable[[str], None] = lambda name: None
) -> list[Tap]:
    """Judge every tensor that both have, in the order of the golden."""
    taps = []
    for name, entry in golden.entries.items():
        if name in dump.shapes:
            array = dump.read(name)
            known = array.dtype.name in TAGS
            taps.append(
                judged(name, array, entry, dtype, stored=dtype == golden.dtype) if known
                else not_judged(name, array.shape, "no trace can hold it")
            )  # fmt: skip
            progress(name)
    return taps
