"""The action of the repository: its YAML by law, its shell steps by running them in a folder.

What a workflow's author or a dump says must never be read as a command, by the shell or by the
runner. The steps are taken out of action.yml as they stand and run by bash.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.explaining.said.report import LISTED
from lockstep.parity.plugin.given import reference_dump
from lockstep.reference.model import load

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests/witnesses/models/untied_float32"
TOKENS = [3, 14, 15, 9, 26]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
INSTALL, TESTS, DUMP = ACTION["runs"]["steps"]
HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned #",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "x\ntouch pwned",
    "-rf --help",
    "${{ github.token }}",
    "x\n::error::pwned",
    "##[error]pwned",
]


def test_it_is_a_composite_action_that_describes_itself():
    assert ACTION["runs"]["using"] == "composite"
    assert {"name", "description", "inputs", "runs"} <= set(ACTION)
    for item in (*ACTION["inputs"].values(), *ACTION["outputs"].values()):
        assert item["description"]
    assert all(step["shell"] == "bash" and step["name"] for step in ACTION["runs"]["steps"])


def test_inputs_reach_the_shell_by_the_environment_alone():
    used = set()
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        for name, value in step["env"].items():
            assert name in step["run"]
            assert re.fullmatch(r"(\$\{\{ (inputs|github)\.[a-z_-]+ \}\})+", value)
            used |= set(re.findall(r"inputs\.([a-z-]+)", value))
    assert used == set(ACTION["inputs"])


def test_the_page_on_ci_names_every_input():
    page = (ROOT / "docs/parity/ci.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in ACTION["inputs"])


class Sandbox:
    """A folder that looks like a runner's, and the steps run in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.summary, self.output = folder / "summary.md", folder / "output"
        (folder / "temp").mkdir()

    def run(self, step: dict, **inputs: str) -> subprocess.CompletedProcess[str]:
        given = {name: "" for name in step["env"]}
        given |= {f"LOCKSTEP_{name.upper()}": value for name, value in inputs.items()}
        known = {
            "LOCKSTEP_PYTHON": sys.executable,
            "RUNNER_TEMP": str(self.folder / "temp"),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(self.output),
        }
        assert set(given) <= set(step["env"])
        environment = {**os.environ, **given, **known}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True
        )

    def unharmed(self) -> bool:
        return not list(self.folder.rglob("pwned"))


@pytest.fixture
def sandbox(tmp_path):
    return Sandbox(tmp_path)


def commands(printed: str) -> list[str]:
    """Return the lines that the runner takes for commands, outside of what it is told to stop."""
    found, token = [], None
    for line in printed.splitlines():
        if token is not None:
            token = None if line == f"::{token}::" else token
        elif line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif line.lstrip().startswith("::") or "##[" in line:
            found.append(line)
    return found


def dumped(path: Path, *, wrong: float = 1.0, extra: Sequence[str] = ()) -> Path:
    truth = reference_dump(load(MODEL), TOKENS)
    with TraceFile(path, tokens=TOKENS, dtype="float32") as file:
        for name in truth.shapes:
            factor = wrong if name == "model.layers.1.mlp.act_fn" else 1.0
            file(name, np.float32(factor) * truth.read(name))
        for name in extra:
            file(name, np.ones((1, 5, 2), np.float32))
    return path


def test_a_clean_dump_passes(sandbox):
    dumped(sandbox.folder / "port.safetensors")
    run = sandbox.run(DUMP, model=str(MODEL), dump="port.safetensors")
    assert run.returncode == 0, run.stdout + run.stderr
    assert sandbox.output.read_text() == "verdict=pass\n"
    assert not [line for line in commands(run.stdout) if line.startswith("::error")]
    assert "clean" in sandbox.summary.read_text().lower()


def test_a_wrong_dump_fails_with_an_annotation_and_a_summary(sandbox):
    dumped(sandbox.folder / "port.safetensors", wrong=1.5)
    run = sandbox.run(DUMP, model=str(MODEL), dump="port.safetensors")
    assert run.returncode == 1, run.stdout + run.stderr
    assert sandbox.output.read_text() == "verdict=fail\n"
    assert any(line.startswith("::error") for line in commands(run.stdout))
    assert "model.layers.1.mlp.act_fn" in sandbox.summary.read_text()


def test_two_dumps_are_compared(sandbox):
    left, right = (sandbox.folder / f"{name}.safetensors" for name in ("left", "right"))
    dumped(left), dumped(right, wrong=1.5)
    for model in ("", str(MODEL)):
        run = sandbox.run(DUMP, left=left.name, dump=right.name, model=model)
        assert run.returncode == 1, run.stdout + run.stderr
        assert "first wrong" in run.stdout
    assert sandbox.run(DUMP, left=left.name, dump=left.name).returncode == 0


@pytest.mark.parametrize("left", ["", "bare.safetensors"])
def test_the_prompt_is_told_where_no_file_says_it(sandbox, left):
    """By hand: the tensors of a trace alone, without what it says of itself."""
    whole = dumped(sandbox.folder / "port.safetensors")
    save_file(load_file(whole), sandbox.folder / "bare.safetensors")
    given = {"model": str(MODEL), "dump": "bare.safetensors", "left": left}
    assert sandbox.run(DUMP, **given).returncode == 2
    run = sandbox.run(DUMP, **given, tokens=",".join(map(str, TOKENS)))
    assert run.returncode == 0, run.stdout + run.stderr
    assert sandbox.run(DUMP, **given, tokens="1,2,3,4,5").returncode == 1


def test_what_is_no_dump_is_an_error_that_is_shown(sandbox):
    run = sandbox.run(DUMP, model=str(MODEL), dump="nowhere.safetensors")
    assert run.returncode == 2
    assert sandbox.output.read_text() == "verdict=error\n"
    assert "    lockstep: error: nowhere.safetensors" in sandbox.summary.read_text()


@pytest.mark.parametrize("text", HOSTILE)
def test_no_input_is_read_as_a_command(sandbox, text):
    for more in ("tokens", "left"):  # the step has a command for either
        run = sandbox.run(DUMP, model=text, dump=text, **{more: text})
        assert run.returncode == 2, run.stdout
        assert commands(run.stdout) == [
            "::error title=Lockstep::the dump could not be judged: see the job's summary"
        ]
    assert sandbox.unharmed()
    assert set(sandbox.output.read_text().splitlines()) == {"verdict=error"}


def test_no_name_in_a_dump_is_read_as_a_command(sandbox):
    for start in range(0, len(HOSTILE), LISTED):  # of more names some are not printed
        path = sandbox.folder / f"{start}.safetensors"
        dumped(path, wrong=1.5, extra=HOSTILE[start : start + LISTED])
        run = sandbox.run(DUMP, model=str(MODEL), dump=path.name)
        assert run.returncode == 1, run.stdout + run.stderr
        assert not [line for line in commands(run.stdout) if re.match(r"::\w+ ?.*::pwned", line)]
        assert all(line.startswith(("::error", "::warning", "::notice"))
                   for line in commands(run.stdout))  # fmt: skip
        assert "\n::error::pwned" not in sandbox.summary.read_text()
    assert sandbox.unharmed()


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("echo it broke; exit 3", 3)])
def test_a_test_command_runs(sandbox, command, code):
    run = sandbox.run(TESTS, test_command=command)
    assert run.returncode == code
    assert len(commands(run.stdout)) == (code != 0)
    assert sandbox.summary.exists() == (code != 0)
    if code:
        assert "    it broke\n" in sandbox.summary.read_text()


@pytest.fixture
def recorder(tmp_path):
    """Stand in for the interpreter that installs: it writes down what it was given."""
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\nfor one in "$@"; do echo "$one"; done > installed\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("version", "wanted"), [("", "/a source"), ("0.1.0", "lockstep-parity==0.1.0")]
)
def test_what_is_installed(sandbox, recorder, version, wanted):
    environment = {"version": version, "source": "/a source", "wanted": "x"}
    step = {**INSTALL, "run": INSTALL["run"].replace('"$LOCKSTEP_PYTHON"', json.dumps(recorder))}
    run = sandbox.run(step, **environment)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (sandbox.folder / "installed").read_text().splitlines()[-1] == wanted


@pytest.mark.parametrize(
    "version", ["../x", "1 --index-url=http://x", "-e", "git+https://x", *HOSTILE]
)
def test_a_version_that_is_none_is_refused(sandbox, recorder, version):
    step = {**INSTALL, "run": INSTALL["run"].replace('"$LOCKSTEP_PYTHON"', json.dumps(recorder))}
    run = sandbox.run(step, version=version, source="/a source", wanted="x")
    assert run.returncode == 2
    assert not (sandbox.folder / "installed").exists() and sandbox.unharmed()


def test_an_action_that_is_given_nothing_says_so(sandbox, recorder):
    step = {**INSTALL, "run": INSTALL["run"].replace('"$LOCKSTEP_PYTHON"', json.dumps(recorder))}
    run = sandbox.run(step, source="/a source")
    assert run.returncode == 2 and "give the action" in run.stdout
