"""The folders refuse their bare names, which porters have in their own projects. By law."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from lockstep import parity

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


@pytest.mark.parametrize("name", ["lockstep", "lockstep.reference", "lockstep.fast"])
def test_a_prompt_completes_the_public_names(name):
    package = import_module(name)
    assert {*package.__all__, "__doc__"} <= {*dir(package)}
    assert all(hasattr(package, public) for public in package.__all__)


def test_a_prompt_completes_what_parity_does():
    assert {"capture", "check", "diff", "explain", "to_numpy"} <= {*dir(parity)}
