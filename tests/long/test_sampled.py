"""Of long tests a run does the hardest cases and draws others, all of them if asked. By hand."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sampled import MANY, drawn

ROOT = Path(__file__).parents[2]
# Loading other plugins takes most of a short run; options may ask for them.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
PROCESSES = ("-p", "xdist.plugin")
FILE = """
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


def ran(folder, *options, file=FILE, **variables):
    """Run pytest as a person does who has set none of these variables."""
    (folder / "test_it.py").write_text(file)
    command = ["-m", "pytest", "-p", "tests.sampled", "-p", "tests.no_skips", "-v", *PROCESSES]
    names = ("EVERY_CASE", "MARKED", "SEED", "NO_SKIPS")
    unset = {f"LOCKSTEP_{name}": "" for name in names}
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | ALONE | unset | variables
    return subprocess.run([sys.executable, *command, *options], cwd=folder, env=environment,
                          capture_output=True, text=True)  # fmt: skip


def passed(folder, *options, **variables):
    run = ran(folder, *options, **variables)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line for line in run.stdout.splitlines() if " PASSED" in line]
    return sorted(line.split("::")[1].split()[0] for line in lines)


@pytest.mark.parametrize("options", [[], ["-n", "2"]])
def test_the_hardest_are_run_and_others_by_the_seed(tmp_path, options):
    first, again, other = (
        passed(tmp_path, *options, LOCKSTEP_NO_SKIPS="1", LOCKSTEP_SEED=seed) for seed in "112"
    )
    assert len(first) == 6 and {"test_a[7]", "test_b", "test_d"} < set(first)
    assert first == again != other


@pytest.mark.parametrize(
    ("options", "variables", "count"),
    [
        ([], {"LOCKSTEP_EVERY_CASE": "1"}, 15),
        ([], {"LOCKSTEP_MARKED": "1"}, 14),
        (["-n", "2"], {"LOCKSTEP_MARKED": "1", "LOCKSTEP_NO_SKIPS": "1"}, 14),
        (["test_it.py::test_a"], {}, 9),
        (["-k", "test_c"], {}, 4),
    ],
)
def test_every_case_is_run_if_asked(tmp_path, options, variables, count):
    assert len(passed(tmp_path, *options, **variables)) == count


def test_of_a_test_that_takes_long_nothing_may_be_run(tmp_path):
    """All of it is run where the marked ones are."""
    none = FILE.replace('sampled(3, "7")', "sampled(0)")
    for variable, count in (("LOCKSTEP_NO_SKIPS", 0), ("LOCKSTEP_MARKED", 9)):
        run = ran(tmp_path, file=none, **{variable: "1"})
        assert run.returncode == 0 and run.stdout.count("::test_a[") == count


def test_what_failed_is_found_again_by_lf(tmp_path):
    fails = FILE.replace("test_c(one): pass", "test_c(one): assert 0")
    assert ran(tmp_path, file=fails, LOCKSTEP_SEED="1").returncode == 1
    again = ran(tmp_path, "--lf", file=fails, LOCKSTEP_SEED="2")
    assert again.stdout.count("::test_c") == 2 and "= 1 failed in" in again.stdout


def test_the_seed_is_told_where_cases_were_drawn(tmp_path):
    assert "LOCKSTEP_SEED=5 draws the same again" in ran(tmp_path, LOCKSTEP_SEED="5").stdout
    assert "LOCKSTEP_SEED" not in ran(tmp_path, LOCKSTEP_EVERY_CASE="1").stdout
    assert "LOCKSTEP_SEED" not in ran(tmp_path, file="def test_d(): pass").stdout


def test_of_very_many_cases_some_are_drawn(tmp_path):
    many = """
import pytest
@pytest.mark.parametrize("one", range(60))
def test_e(one): pass
"""
    run = ran(tmp_path, file=many, LOCKSTEP_SEED="5")
    assert f"{MANY} passed" in run.stdout and "LOCKSTEP_SEED=5 draws the same again" in run.stdout
    assert "60 passed" in ran(tmp_path, file=many, LOCKSTEP_EVERY_CASE="1").stdout


@pytest.mark.parametrize("options", [[], ["-n", "2"]])
def test_a_mark_that_fits_no_cases_is_told(tmp_path, options):
    run = ran(tmp_path, *options, file=FILE.replace("sampled(3,", "sampled(10,"))
    assert run.returncode and "test_a[0]: sampled(10, '7') of 9" in run.stdout + run.stderr


class Case(NamedTuple):
    name: str
    nodeid: str


def cases(count, test="test_a"):
    names = [f"{test}[{one}]" for one in range(count)]
    return [Case(name, name) for name in names]


def test_every_case_is_drawn_by_some_seed():
    names = {one.nodeid for seed in range(9) for one in drawn(cases(4), 2, "3", seed=seed)}
    assert names == {one.nodeid for one in cases(4)}


def test_of_several_tests_each_has_a_case_before_one_has_two():
    files = [*cases(20), *cases(3, "test_b"), *cases(1, "test_c")]
    for seed in range(9):
        found = [one.name[:6] for one in drawn(files, 4, "test_a[3]", seed=seed)]
        assert {"test_a", "test_b", "test_c"} == set(found) and found.count("test_c") == 1


@pytest.mark.parametrize("asked", [(2, "gone"), (1, "1", "2"), (3,), (0, "1"), (2, "test_b[1]")])
def test_a_mark_that_fits_no_cases_is_refused(asked):
    with pytest.raises(ValueError, match=r"test_a\[0\]: sampled\("):
        drawn(cases(3), *asked, seed=1)
