"""The folders refuse their bare names, which porters have in their own projects. By law."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["reference", "fast", "parity"])
def test_a_bare_import_is_refused_in_one_line(name):
    run = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert last == f"ImportError: import this package as lockstep.{name}, not {name}"


def test_the_import_root_gives_the_three_packages():
    code = "from lockstep import reference, fast, parity; print(reference.__name__, fast.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "lockstep.reference lockstep.fast\n", run.stderr
