"""The table of the worst errors, of one process and of several. By hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.witnesses import judge

RIGHT = np.array([1.0, -1.0])  # its deviation is 1


class Terminal:
    def __init__(self):
        self.lines = []

    def section(self, title):
        self.lines.append(title)

    def write_line(self, line):
        self.lines.append(line)


def process() -> Any:
    return SimpleNamespace(stash=pytest.Stash(), workeroutput={})


def seen(config: Any, engine: str, off: float) -> None:
    judge.Judge(judge.table_of(config))(engine, "logits", RIGHT + off, RIGHT)


def test_what_processes_saw_is_in_one_table():
    """As pytest-xdist calls it, which need not be there: two that judge, and one that dies."""
    first, terminal = process(), Terminal()
    del first.workeroutput
    for engine, off in (("cpu", 2.0**-17), ("cpu", 2.0**-16)):
        worker: Any = process()
        seen(worker, engine, off)
        judge.pytest_sessionfinish(SimpleNamespace(config=worker))
        judge.pytest_testnodedown(
            SimpleNamespace(config=first, workeroutput=worker.workeroutput), None
        )
    judge.pytest_testnodedown(SimpleNamespace(config=first), "died")
    judge.pytest_sessionfinish(SimpleNamespace(config=first))
    judge.pytest_terminal_summary(terminal, first)
    assert terminal.lines[1:] == ["         cpu", "     1.5e-05  logits (2)"]
