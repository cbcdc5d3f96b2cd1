"""Write the taps of a run to a trace file as they are made."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.writers.in_place import InPlaceWriter
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.safetensors_header import HEADER_LIMIT

ABOUT = 1 << 20  # bytes of the header for what is yet to be said of the whole
CACHED = 1 << 29  # bytes of a trace that may lie in the system's cache, for who reads it next

TAGS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "uint16": "U16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


class Unwritten(InputError):
    """A file has no room, or its place is lost; what it holds is right."""


class TraceFile:
    """A `trace` callback that writes each tap under a prefix, in the dtype it was computed in.

    The file appears when the block ends well; otherwise nothing is left behind. `room` is how many
    bytes its header may take: in that many it is written without a copy. What is beyond `CACHED`
    bytes goes straight to the disk, beside the run.
    Raises: InputError if it cannot be written, or as soon as nothing could read its header.
    """

    cached: int | None = CACHED

    def __init__(self, path: str | Path, room: int = 0, /, **about: Any):
        self.path, self.prefix, self.count = Path(path), "", 0
        self.header = 0  # bytes of what is said of the tensors so far
        try:
            self.writer = InPlaceWriter(self.path, room, self.cached, **about)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise self.unwritten(error) from None
        self.about = len(json.dumps(self.writer.header)) + ABOUT

    def __call__(self, name: str, value: Any) -> None:
        array = np.ascontiguousarray(to_numpy(value))
        raw = array.reshape(-1).view(np.uint8)
        shape, tag = np.shape(value), TAGS[array.dtype.name]
        try:
            self.writer.add(self.prefix + name, raw.data, shape=shape, dtype=tag)
        except OSError as error:
            raise self.unwritten(error) from None
        self.noted(self.prefix + name)

    def noted(self, name: str) -> None:
        """Count a tensor that is there. Raises: InputError if nothing could read the header."""
        self.count += 1
        self.header += len(json.dumps({name: self.writer.header[name]}))
        self.check_header()

    def say(self, **about: Any) -> None:
        """Add to what is said of the whole what is known only later."""
        self.writer.say(**about)

    def check_header(self, times: int = 1) -> None:
        """Raise InputError if a header so many times as long as now is over what readers take."""
        if self.header * times > HEADER_LIMIT - self.about:
            what = f"its header of {self.count * times} tensors would be over the "
            shorter = "trace a shorter prompt, or " if self.about > 2 * ABOUT else "trace "
            how = f"{shorter}fewer taps (--taps) or fewer steps"
            raise InputError(self.path, f"{what}{HEADER_LIMIT >> 20} MiB that readers take", how)

    def __enter__(self) -> "TraceFile":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.writer.discard()
            return
        try:
            self.complete()
        except OSError as failure:
            raise self.unwritten(failure) from None

    def complete(self) -> None:
        """Put the file where it belongs."""
        self.writer.close()

    def unwritten(self, error: Exception) -> Unwritten:
        reason = getattr(error, "strerror", None) or error
        return Unwritten(self.path, f"cannot be written: {reason}")
