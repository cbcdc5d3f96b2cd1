"""A journal of a run: what is done is noted at once, so that another run need not do it again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from lockstep.parity.dumps.trace_file import Unwritten
from lockstep.reference.checkpoint.errors import InputError, show

LONGEST = 1 << 24  # bytes of a line: a longer one was not written here
ANOTHER = "another run is writing it"
TRIES = 8  # to lock a file that other runs delete as they end
Record = dict[str, Any]


class Journal:
    """Lines of JSON in a file. The first says which run they are of, each other one what is done.

    Opened again by the same run it hands out its `records`. A last line that is torn is dropped,
    as after a power cut. Nobody else can have it open meanwhile. `anew` says how to do without it.
    Raises: InputError if the file is none of ours, of another run, or in use. It is left as it is.
    """

    def __init__(
        self, path: str | Path, run: Mapping[str, Any], anew: str = "delete it to begin anew"
    ):
        self.path, self.run, self.anew = Path(path), dict(run), anew
        self.file = self.opened()
        try:
            self.lock()
            self.records, self.ends = self.read()
            self.keep(len(self.records))
        except BaseException:
            self.close()
            raise

    def opened(self) -> BinaryIO:
        try:
            return self.path.open("a+b")
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = getattr(error, "strerror", None) or error
            raise InputError(self.path, f"cannot be written: {reason}") from None

    def lock(self) -> None:
        """Keep others away until the file is closed, where the file system has locks.

        A run deletes its file as it ends, perhaps between our opening and our lock: nobody would
        find what is written there, so the file is opened again.
        """
        for _ in range(TRIES):
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                break
            except OSError:
                return
            if self.is_there():
                return
            self.file.close()
            self.file = self.opened()
        raise InputError(self.path, ANOTHER)

    def is_there(self) -> bool:
        """Say whether the open file is still the one under its name."""
        try:
            return os.path.samestat(os.fstat(self.file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def read(self) -> tuple[list[Record], list[int]]:
        """Return the records that are whole, and where the line of each ends in the file."""
        self.file.seek(0)
        first = self.file.readline(LONGEST)
        head = line_of(self.run)
        if not first.endswith(b"\n"):
            if not head.startswith(first):
                raise InputError(self.path, "is no journal of such a run; it is left as it is")
            return [], [0]
        self.check_run(record_of(first))
        records, ends = [], [self.file.tell()]
        while (line := self.file.readline(LONGEST)).endswith(b"\n"):
            record = record_of(line)
            if record is None:
                where = f"line {len(records) + 2}"
                raise InputError(self.path, "holds what is no record; it is left as it is", where)
            records.append(record)
            ends.append(self.file.tell())
        if len(line) == LONGEST:
            raise InputError(self.path, f"has a line of over {LONGEST >> 20} MiB")
        return records, ends

    def check_run(self, found: Record | None) -> None:
        """Refuse a journal of another run, by the first thing that differs."""
        if found is None or found.get("journal") != self.run["journal"]:
            raise InputError(self.path, "is no journal of such a run; it is left as it is")
        for key in [*self.run, *found]:
            was, now = found.get(key), json.loads(json.dumps(self.run.get(key)))
            if was != now:
                what = f"is of a run with {key} {show(was, 60)}, but here it is {show(now, 60)}"
                raise InputError(self.path, what, self.anew)

    def keep(self, count: int) -> None:
        """Forget all but the first `count` records, and what is torn behind them."""
        self.records = self.records[:count]
        self.ends = self.ends[: count + 1]
        self.file.truncate(self.ends[-1])
        if self.ends == [0]:
            self.ends = [self.put(self.run)]

    def add(self, record: Record) -> None:
        """Note what is done. It is with the system at once, whatever becomes of this process.

        Raises: Unwritten, an InputError, if the disk is full.
        """
        self.put(record)

    def put(self, record: Record) -> int:
        try:
            self.file.write(line_of(record))
            self.file.flush()
            return self.file.tell()
        except OSError as error:
            reason = error.strerror or error
            raise Unwritten(self.path, f"cannot be written: {reason}") from None

    def close(self) -> None:
        """Leave the file where it is, for another run."""
        with suppress(OSError):  # a full disk: what is buffered is torn, and is dropped next time
            self.file.close()

    def remove(self) -> None:
        """Delete the file: the run is complete."""
        self.path.unlink(missing_ok=True)
        self.close()


def records_of(path: Path) -> Iterator[Record]:
    """Yield the records of a journal behind its first line, as far as they are records.

    Raises: OSError if it cannot be read.
    """
    with path.open("rb") as file:
        file.readline(LONGEST)
        while (record := record_of(file.readline(LONGEST))) is not None:
            yield record


def in_use(path: Path) -> bool:
    """Tell whether a run that has not ended writes a journal. Raises: OSError if it is none."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # where the file system has no locks
            return False
    return False


def line_of(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def record_of(line: bytes) -> Record | None:
    """Return the object that a line holds, None if it holds none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
