"""What is left out of a run is said and fails it, in one process and in several. By hand."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import no_skips

ROOT = Path(__file__).parents[2]
THREE = """
import pytest
def test_one(): pass
def test_two(): pass
@pytest.mark.skipif(True, reason="by hand")
def test_skipped(): pass
"""


@pytest.mark.parametrize(
    ("chosen", "asked", "code", "said"),
    [
        ("one", "1", 4, "LOCKSTEP_NO_SKIPS: 2 tests are deselected"),
        ("test", "1", 1, "LOCKSTEP_NO_SKIPS: 1 skipped"),
        ("one", "", 0, "1 passed, 2 deselected"),
    ],
)
def test_in_one_process(tmp_path, chosen, asked, code, said):
    (tmp_path / "test_it.py").write_text(THREE)
    command = ["-m", "pytest", "-p", "tests.no_skips", "-p", "no:cacheprovider", "-k", chosen]
    # Loading other plugins takes most of the run; options may ask for them.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOCKSTEP_NO_SKIPS": asked} | alone
    run = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment,
                         capture_output=True, text=True)  # fmt: skip
    assert run.returncode == code, run.stdout + run.stderr
    assert said in run.stdout + run.stderr


class Reporter:
    def __init__(self):
        self.stats, self.lines = {}, []

    def ensure_newline(self):
        pass

    def write_line(self, line, **colours):
        self.lines.append(line)


@pytest.mark.parametrize("left_out", [0, 3])
def test_in_several_processes(monkeypatch, left_out):
    """As pytest-xdist calls it, which need not be there: two that collect, and one that dies."""
    monkeypatch.setenv("LOCKSTEP_NO_SKIPS", "1")
    reporter = Reporter()
    plugins = SimpleNamespace(get_plugin=lambda name: reporter)
    first: Any = SimpleNamespace(stash=pytest.Stash(), pluginmanager=plugins)
    for _ in range(2):
        worker = SimpleNamespace(workerinput={}, workeroutput={})
        items: Any = [SimpleNamespace(config=worker)] * left_out
        no_skips.pytest_deselected(items[:1])
        no_skips.pytest_deselected(items[1:])
        node = SimpleNamespace(config=first, workeroutput=worker.workeroutput)
        no_skips.pytest_testnodedown(node, None)
    no_skips.pytest_testnodedown(SimpleNamespace(config=first), "died")
    session: Any = SimpleNamespace(config=first, exitstatus=pytest.ExitCode.OK)
    no_skips.pytest_sessionfinish(session, pytest.ExitCode.OK)
    lines = [f"LOCKSTEP_NO_SKIPS: {left_out} tests are deselected"] * bool(left_out)
    assert (session.exitstatus, reporter.lines) == (int(bool(left_out)), lines)
