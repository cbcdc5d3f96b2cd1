"""Traces of ranks: a file for each, with what that rank has."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.parallel.rank_files import path_of
from lockstep.reference.parallel.each import Each


def file_of(rank: int, ranks: int, pattern: str, room: int, /, **about: Any) -> TraceFile:
    """Open the trace of one rank, which says whose it is."""
    return TraceFile(path_of(pattern, rank), room, **about, rank=rank, ranks=ranks)


class TraceFiles:
    """What a `TraceFile` is to one rank, for all of those that run in this process."""

    def __init__(self, ranks: int, pattern: str, room: int, /, **about: Any) -> None:
        self.given = [(rank, ranks, pattern, room) for rank in range(ranks)]
        self.about, self.each = about, list[TraceFile]()
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # what is open is discarded if the next cannot be
            self.each = [stack.enter_context(file_of(*one, **self.about)) for one in self.given]
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def __call__(self, name: str, value: Any) -> None:
        for rank, file in enumerate(self.each):
            file(name, value[rank] if isinstance(value, Each) else value)

    @property
    def prefix(self) -> str:
        return self.each[0].prefix

    @prefix.setter
    def prefix(self, prefix: str) -> None:
        for file in self.each:
            file.prefix = prefix

    @property
    def count(self) -> int:
        return self.each[0].count

    def check_header(self, times: int = 1) -> None:
        for file in self.each:
            file.check_header(times)
