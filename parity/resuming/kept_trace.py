"""A trace that is kept while it is written, so that another run goes on behind its last tensor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.cli.output import counted
from lockstep.parity.dumps.trace_file import TAGS, TraceFile, Unwritten
from lockstep.parity.resuming.journal import Journal, in_use, records_of
from lockstep.parity.resuming.layout import check_layout, layout_of
from lockstep.parity.writers.lockstep_dump import SIZES
from lockstep.reference.checkpoint.dtypes import numpy_dtype
from lockstep.reference.checkpoint.errors import InputError, escape

FOREIGN = "exists, and no journal says that it is part of a trace; it is left as it is"
AWAY = "delete it, if it is yours to delete, to begin anew"
GAPS = "its tensors do not lie one behind another; it is left as it is"


def part_of(path: Path) -> Path:
    """Return where the tensors of a trace stand until it is complete."""
    return path.with_name(f"{path.name}.part")


def journal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part.journal")


class KeptTrace(TraceFile):
    """A `TraceFile` whose part stays where it is if the run ends early, with a journal beside it.

    `run` says which run this is. Opened again by the same run it has the tensors that are whole,
    each checked by its sum: `record` and `read` give them. `stream` is the last value that went
    from layer to layer, kept where it is no tap that is written.
    Raises: InputError if what is there is of another run, or cannot be written.
    """

    cached = None  # each tensor is in the file before the journal says so

    def __init__(self, path: str | Path, room: int, run: Mapping[str, Any], /, **about: Any):
        path = Path(path)
        part, journal = part_of(path), journal_of(path)
        if part.exists() and not journal.exists():
            raise InputError(part, FOREIGN, AWAY)
        anew = f"delete {escape(part.name)} and {escape(journal.name)} to begin anew"
        self.journal = Journal(journal, {**run, "room": room}, anew)
        self.kept: dict[str, dict[str, Any]] = {}
        self.before, self.begun = 0, False  # how many tensors there were, and if anything was
        self.fed: list[list[int]] = []  # what each step was fed behind the prompt
        self.stream: dict[str, Any] | None = None
        try:
            super().__init__(path, room, **about)
            self.take_over(part)
        except BaseException:
            if hasattr(self, "writer"):
                self.writer.body.close()
            self.journal.close()
            raise
        self.before, self.begun = len(self.kept), self.holds

    @property
    def holds(self) -> bool:
        """Whether there is anything from which another run could go on."""
        return bool(self.count or self.stream or self.fed)

    def take_over(self, part: Path) -> None:
        """Let the writer go on with what is there, as far as the journal and the bytes agree."""
        records = self.journal.records
        if not records or not part.exists():
            self.journal.keep(0)
            self.writer.bodies = self.writer.bodies.replace(part)
            return
        self.writer.discard()
        self.writer.bodies, self.writer.body = part, part.open("r+b")  # pyright: ignore[reportAttributeAccessIssue]
        for number, record in enumerate(records):
            if not self.take(record):
                self.journal.keep(number)
                break
        self.writer.body.truncate(self.writer.start + self.writer.size)
        self.writer.body.seek(0, os.SEEK_END)

    def take(self, record: dict[str, Any]) -> bool:
        """Take over what one record says, or return False if its bytes are not there."""
        try:
            if "fed" in record:
                self.note_fed(record["fed"])
                return True
            if "stream" in record:
                self.stream = record if self.whole(record) else None
                return True
            return self.take_tensor(record)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(self.journal.path, "holds a record that says too little") from None

    def take_tensor(self, record: dict[str, Any]) -> bool:
        name, (start, stop) = record["name"], record["offsets"]
        if start != self.writer.size or stop < start or name in self.writer.header:
            raise InputError(self.journal.path, GAPS)
        if not self.whole(record):
            return False
        entry = {"dtype": record["dtype"], "shape": record["shape"], "data_offsets": [start, stop]}
        self.writer.header[name], self.writer.size = entry, stop
        self.kept[name] = record
        self.noted(name)
        return True

    def whole(self, record: dict[str, Any]) -> bool:
        """Tell whether the bytes that a record speaks of are there.

        Raises: ValueError if it cannot be right, whatever the bytes are.
        """
        start, stop = record["offsets"]
        size = prod(record["shape"]) * SIZES[record["dtype"]]
        if not 0 <= start <= stop or stop - start != size or min(record["shape"], default=0) < 0:
            raise ValueError("shape")
        check_layout(record["shape"], record.get("steps"))
        home = self.slot(record["slot"]) if "stream" in record else self.writer.bodies
        try:
            if home.stat().st_size < stop:
                return False
            return crc32(self.bytes_of(record)) == record["sum"]
        except OSError:
            return False

    def bytes_of(self, record: dict[str, Any]) -> bytes:
        start, stop = record["offsets"]
        if "stream" in record:
            return self.slot(record["slot"]).read_bytes()[start:stop]
        return os.pread(self.writer.body.fileno(), stop - start, self.writer.start + start)

    def read(self, record: dict[str, Any]) -> np.ndarray:
        """Return a tensor that is there, row by row. Raises: InputError if it is gone."""
        raw, dtype = self.bytes_of(record), numpy_dtype(record["dtype"])
        if crc32(raw) != record["sum"]:
            raise InputError(self.writer.bodies, "file changed while reading")
        return np.frombuffer(raw, dtype).reshape(record["shape"])

    def record(self, name: str) -> dict[str, Any] | None:
        """Return what is known of a tap that was there when the file was opened."""
        return self.kept.get(self.prefix + name)

    def __call__(self, name: str, value: Any) -> None:
        if self.record(name) is None:
            self.put(name, value)

    def put(self, name: str, value: Any) -> None:
        """Write a tap that is not there."""
        array = to_numpy(value)
        self.put_tensor(name, array, described(array, layout_of(value)))

    def put_tensor(self, name: str, array: np.ndarray, said: Mapping[str, Any]) -> None:
        """Write a tensor, and behind it a line of the journal, with what is `said` of it."""
        start = self.writer.size
        super().__call__(name, array)
        try:
            self.writer.body.flush()
        except OSError as error:
            raise self.unwritten(error) from None
        offsets = [start, self.writer.size]
        self.journal.add({"name": self.prefix + name, **said, "offsets": offsets})

    def check_header(self, times: int = 1) -> None:
        """Raise InputError if the header is too long. A run that goes on was asked before."""
        super().check_header(1 if self.begun else times)

    def put_stream(self, name: str, value: Any) -> None:
        """Keep a layer's result that is not written: the next layer goes on from it."""
        array = np.ascontiguousarray(to_numpy(value))
        slot = 1 - self.stream["slot"] if self.stream else 0
        said = described(array, layout_of(value)) | {"offsets": [0, array.nbytes], "slot": slot}
        try:
            self.slot(slot).write_bytes(array.reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise self.unwritten(error) from None
        self.journal.add({"stream": self.prefix + name, **said})
        self.stream = {"stream": self.prefix + name, **said}

    def slot(self, number: int) -> Path:
        """Return where the stream is kept, in turn: one of the two is always whole."""
        return self.path.with_name(f"{self.path.name}.part.stream{1 if number else 0}")

    def put_fed(self, chosen: list[int]) -> None:
        """Note what the rows are fed next."""
        self.journal.add({"fed": chosen})
        self.note_fed(chosen)

    def note_fed(self, chosen: list[int]) -> None:
        """A step begins: what went through the layers of the last one is behind us."""
        self.fed.append(chosen)
        self.stream = None

    def leave(self) -> None:
        """Close all files and leave them where they are, for another run."""
        with suppress(OSError):  # a full disk: what is buffered is not wanted any more
            self.writer.body.close()
        self.journal.close()

    def complete(self) -> None:
        self.writer.keeps = True  # a disk may be full for the header alone
        super().complete()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                super().__exit__(kind, error, trace)
        except BaseException as failure:
            self.end(failure)
            raise
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Leave what another run can go on from; after a complete run, or a bad one, nothing."""
        if error is not None and (self.begun or (stays(error) and self.holds)):
            return self.leave()
        self.writer.keeps = False
        self.writer.discard()
        for number in (0, 1):
            self.slot(number).unlink(missing_ok=True)
        self.journal.remove()


def described(array: np.ndarray, steps: list[int] | None) -> dict[str, Any]:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    said = {"dtype": TAGS[array.dtype.name], "shape": [*array.shape], "sum": crc32(raw)}
    return said if steps is None else said | {"steps": steps}


def stays(error: BaseException) -> bool:
    """Tell whether a run that ended so may go on another time: it was ended, or had no room."""
    return isinstance(error, KeyboardInterrupt | SystemExit | MemoryError | OSError | Unwritten)


def what_is_kept(path: Path) -> str:
    """Say what an interrupted run has left beside a trace that is not there yet, if anything."""
    taps = more = 0
    with suppress(OSError):
        for record in records_of(journal_of(path)):
            taps += "name" in record
            more += "stream" in record or "fed" in record
    return counted(taps, "tap") if taps else "a layer's result" if more else ""


def is_written(path: Path) -> bool:
    """Tell whether a run that goes on at this moment writes a trace."""
    with suppress(OSError):
        return in_use(journal_of(path))
    return False
