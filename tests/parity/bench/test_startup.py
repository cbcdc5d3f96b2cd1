"""Start-up: nothing is read twice, and the script that measures it measures what it says."""

import os
import sys
import time

import pytest

from lockstep.parity.bench.startup import Steps, command, environment, main, report
from lockstep.reference.checkpoint import checkpoint
from lockstep.reference.tokenizer import tokenizer
from tests.sampled import sampled


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_files_are_read_once(lockstep, demo, backend, monkeypatch):
    """By law: one header, and one tokenizer, however many parts of the command ask for them."""
    read = []

    def counted(module, name):
        made = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: read.append(name) or made(*a, **k))

    counted(tokenizer, "read_tokenizer")
    counted(checkpoint, "Shards")
    said = lockstep("generate", demo, "--prompt", "Hi", "--stop", "x", "--max-tokens", 2,
                    "--backend", backend)  # fmt: skip
    assert said.code == 0
    assert sorted(read) == ["Shards", "read_tokenizer"]


def test_the_steps_take_what_they_take():
    """By law: who sleeps takes time of the clock, and none of a processor."""
    took = Steps()
    assert took("sleep", lambda: time.sleep(0.2) or 7) == 7
    ((name, clock, processor),) = took.found
    assert name == "sleep" and clock >= 0.2 and processor < clock


@sampled(0)
def test_the_report_has_every_part(demo):
    lines = report(str(demo), "cpu", rounds=1).splitlines()
    for part in ("import numpy", "tokenizer", "weights", "first pass", "its first text, median",
                 "the command, median"):  # fmt: skip
        assert any(line.startswith(part) for line in lines), part
    assert all(float(line.split()[-1]) >= 0 for line in lines[1:])


def test_bytecode_is_kept_where_python_keeps_none(demo, tmp_path, monkeypatch):
    """By law: what is measured is a start like that of an installed package."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert environment(str(tmp_path)) is os.environ
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    took = command(str(demo), "cpu", environment(str(tmp_path)))
    assert list(tmp_path.rglob("generate*.pyc"))
    assert 0 < took.text <= took.whole


def test_what_is_refused_is_told_in_a_line(demo, tmp_path, capsys):
    for core, words in (("--rounds: 0", [str(demo), "--rounds", "0"]), ("no", [f"{tmp_path}/no"])):
        assert main(words) == 2
        said = capsys.readouterr()
        assert core in said.err and said.err.count("\n") == 1 and not said.out


def test_a_command_that_fails_is_no_figure(tmp_path):
    import subprocess

    with pytest.raises(subprocess.CalledProcessError):
        command(str(tmp_path), "cpu")
