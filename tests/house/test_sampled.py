"""Of long tests a run does the hardest cases and draws others, all of them if asked. By hand."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sampled import drawn

ROOT = Path(__file__).parents[2]
TWO = """
import pytest
from tests.sampled import sampled
long = sampled(2, "test_b")
@sampled(3, "7")
@pytest.mark.parametrize("one", range(9))
def test_a(one): pass
@long
def test_b(): pass
@long
@pytest.mark.parametrize("one", range(4))
def test_c(one): pass
def test_d(): pass
"""


def passed(folder, *options, **variables):
    (folder / "test_it.py").write_text(TWO)
    command = ["-m", "pytest", "-p", "tests.sampled", "-p", "tests.no_skips", "-v"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOCKSTEP_NO_SKIPS": "1"} | variables
    run = subprocess.run([sys.executable, *command, *options], cwd=folder, env=environment,
                         capture_output=True, text=True)  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return [line.split("::")[1].split()[0] for line in run.stdout.splitlines() if " PASSED" in line]


def test_the_hardest_are_run_and_others_by_the_seed(tmp_path):
    some = passed(tmp_path, LOCKSTEP_SEED="1")
    assert len(some) == 6 and {"test_a[7]", "test_b", "test_d"} < set(some)
    assert some == passed(tmp_path, LOCKSTEP_SEED="1")
    assert some != passed(tmp_path, LOCKSTEP_SEED="2")


@pytest.mark.parametrize(
    ("options", "variables", "count"),
    [([], {"LOCKSTEP_EVERY_CASE": "1"}, 15), (["test_it.py::test_a"], {}, 9)],
)
def test_every_case_is_run_if_asked(tmp_path, options, variables, count):
    assert len(passed(tmp_path, *options, **variables)) == count


class Case(NamedTuple):
    name: str
    nodeid: str


def cases(count):
    names = [f"test_a[{one}]" for one in range(count)]
    return [Case(name, name) for name in names]


def test_every_case_is_drawn_by_some_seed():
    names = {one.nodeid for seed in range(9) for one in drawn(cases(4), 2, "3", seed=seed)}
    assert names == {one.nodeid for one in cases(4)}


@pytest.mark.parametrize("asked", [(2, "gone"), (1, "1", "2"), (3,), (2, "test_b[1]")])
def test_a_mark_that_fits_no_cases_is_refused(asked):
    with pytest.raises(pytest.UsageError, match=r"test_a\[0\]: sampled\("):
        drawn(cases(3), *asked, seed=1)
