"""Write the sketches of a run as it goes on: a trace of some hundred bytes a tap."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.dumps.dtype import computed_in
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.trace_file import TAGS, Unwritten
from lockstep.parity.naming.names import tap_named
from lockstep.parity.naming.rotary_order import in_halves
from lockstep.parity.sketches.sketched import (
    SKETCH,
    VERSION,
    Entry,
    entry_of,
    write_sketches,
)
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.safetensors_header import HEADER_LIMIT

UNEQUAL = "a batch of unequal prompts cannot be sketched: what fills rows up would be in it"


class SketchFile:
    """A `trace` callback that keeps the sketch of each tap, under a prefix.

        with SketchFile("port.sketch", dtype="float32", tokens=[1, 2, 3]) as trace:
            trace("model.norm", values)     # an array of NumPy, MLX or torch

    The file appears when the block ends well. What is said of the run is what a trace says.
    Raises: InputError if it cannot be written, or a name comes twice.
    """

    def __init__(self, path: str | Path, /, **about: Any):
        self.path, self.prefix, self.entries = Path(path), "", dict[str, Entry]()
        self.about: dict[str, str] = {}
        self.header = 0
        self.say(**about)

    @property
    def count(self) -> int:
        return len(self.entries)

    def say(self, **about: Any) -> None:
        """Add to what is said of the whole what is known only later, such as decoded=[7, 5]."""
        for key, value in about.items():
            self.about[key] = value if isinstance(value, str) else json.dumps(value)

    def __call__(self, name: str, value: Any) -> None:
        array, name = to_numpy(value), self.prefix + name
        if array.dtype.name not in TAGS:
            raise InputError(self.path, f"{array.dtype} is nothing that a trace holds", show(name))
        self.keep(name, entry_of(np.ascontiguousarray(array).reshape(np.shape(array))))

    def keep(self, name: str, entry: Entry) -> None:
        """Keep a sketch that is made already. Raises: InputError if there is one of this name."""
        if name in self.entries:
            raise InputError(self.path, "tensor was written already", show(name))
        self.entries[name] = entry
        self.header += len(name) + 100
        self.check_header()

    def check_header(self, times: int = 1) -> None:
        """Raise InputError if a header so many times as long would be over what readers take."""
        if self.header * times > HEADER_LIMIT:
            what = f"its header of {self.count * times} sketches would be over the limit"
            raise InputError(self.path, what, "write fewer taps (--taps) or fewer steps")

    def __enter__(self) -> SketchFile:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            return
        if not self.entries:
            raise InputError(self.path, "no tensor was sketched, so there is nothing to write")
        about = {"format": SKETCH, "version": VERSION, **self.about}
        try:
            write_sketches(self.path, about, self.entries, with_nan=True)
        except OSError as failure:
            reason = failure.strerror or failure
            raise Unwritten(self.path, f"cannot be written: {reason}") from None


def sketch_dump(
    dump: Dump, path: str | Path, *, progress: Callable[[str], None] = lambda name: None
) -> dict[str, Any]:
    """Sketch every tensor of a trace or a dump, a piece at a time; return what was written.

    Queries and keys of neighbours that turn together are put into halves, as every reader does.
    What no trace can hold, such as complex numbers, is in `left_out` of what is returned.
    Raises: InputError if the dump is of a batch of unequal prompts, or nothing of it can be held.
    """
    if len({*map(len, dump.batch or [])}) > 1:
        raise InputError(dump.path, UNEQUAL)
    turned, _ = in_halves(dump, tap_named)
    said = {key: text for key, text in dump.about.items() if key not in (
        "format", "version", "rotary_neighbours", "tensors")}  # fmt: skip
    left_out = []
    with SketchFile(path, **said) as file:
        if "dtype" not in said:
            file.say(dtype=computed_in(dump)[0])
        for name in turned.shapes:
            tensor = turned.parts(name)
            if tensor.dtype.name in TAGS:
                file.keep(name, entry_of(tensor))
            else:
                left_out.append({"name": name, "dtype": tensor.dtype.name})
            progress(name)
    size = Path(path).stat().st_size
    return {"file": str(path), "tensors": file.count, "bytes": size, "left_out": left_out}
