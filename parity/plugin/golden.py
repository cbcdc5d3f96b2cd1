"""A golden trace: a sketch of every tensor of a run, in one small safetensors file.

`sketches/sketched.py` has what is in it. Its metadata has `dtype`, and `tokens` if they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.parity.diffing.plain import not_judged, rounding, unfit
from lockstep.parity.dumps.dtype import computed_in
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.parts import Parts
from lockstep.parity.dumps.trace_file import TAGS
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.judging.result import Tap
from lockstep.parity.sketches.judging import located
from lockstep.parity.sketches.sketched import Entry, entry_of, read_sketches, write_sketches
from lockstep.reference.checkpoint.errors import InputError, show

FORMAT, VERSION = "lockstep-golden", "1"


@dataclass(frozen=True)
class Golden:
    """The sketches of a run, by the names of its tensors, in its order."""

    path: Path
    dtype: str
    tokens: str | None
    entries: Mapping[str, Entry]


def golden_of(dump: Dump, path: Path) -> Golden:
    """Sketch a dump. Raises: InputError if it holds NaN, which agrees with nothing."""
    entries: dict[str, Entry] = {}
    for name in dump.shapes:
        entries[name] = entry_of(dump.parts(name))
        if entries[name].nan:
            raise InputError(dump.path, "holds NaN, which can be no golden", name)
    return Golden(path, floating(computed_in(dump)[0]), dump.about.get("tokens"), entries)


def floating(dtype: str) -> str:
    """Return the dtype to judge in: of whole numbers alone nothing rounds."""
    return dtype if dtype in EPSILONS else "float32"


def write_golden(golden: Golden) -> None:
    """Put a golden trace in place of what was there, whole or not at all."""
    about = {"format": FORMAT, "version": VERSION, "dtype": golden.dtype}
    about |= {} if golden.tokens is None else {"tokens": golden.tokens}
    write_sketches(golden.path, about, golden.entries, with_nan=False)


def read_golden(path: Path) -> Golden:
    """Read a golden trace that nobody vouches for.

    Raises: InputError if it is no golden of this version, or its parts do not fit together.
    """
    about, entries = read_sketches(path, kind=FORMAT, version=VERSION, with_nan=False)
    if about.get("dtype") not in EPSILONS:
        raise InputError(path, f"dtype {show(about.get('dtype'))}", "__metadata__")
    return Golden(path, about["dtype"], about.get("tokens"), entries)


def judged(name: str, tensor: Parts, entry: Entry, dtype: str, *, stored: bool) -> Tap:
    """Return "ok" if rounding in `dtype` may be all that changed since, else "differs".

    `stored` says whether it must also be stored as it was.
    """
    if tensor.shape != entry.shape:
        said = f"shape {list(tensor.shape)}, but the golden's {list(entry.shape)}"
        return unfit(name, tensor, said)
    tag = TAGS[tensor.dtype.name]
    if stored and tag != entry.dtype:
        return unfit(name, tensor, f"stored as {tag}, but in the golden as {entry.dtype}")
    port = entry_of(tensor)
    if port.nan:  # it agrees with nothing, itself included
        return unfit(name, tensor, f"{port.nan} of {tensor.size} are NaN")
    if (port.digest, tag) == (entry.digest, entry.dtype):
        return Tap(name, None, port.shape, "ok", max_abs=0.0, rms_rel=0.0)
    if tensor.dtype.kind in "iub":
        return located(name, port, entry, 0.0)
    if port.infinite != entry.infinite:
        return unfit(name, tensor, "infinite values elsewhere than in the golden")
    return located(name, port, entry, rounding(dtype))


def compared(
    golden: Golden, dump: Dump, dtype: str, progress: Callable[[str], None] = lambda name: None
) -> list[Tap]:
    """Judge every tensor that both have, in the order of the golden."""
    taps = []
    for name, entry in golden.entries.items():
        if name in dump.shapes:
            tensor = dump.parts(name)
            known = tensor.dtype.name in TAGS
            taps.append(
                judged(name, tensor, entry, dtype, stored=dtype == golden.dtype) if known
                else not_judged(name, tensor.shape, "no trace can hold it")
            )  # fmt: skip
            progress(name)
    return taps
