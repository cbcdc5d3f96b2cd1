"""The command as a process: signals, closed and full outputs, odd surroundings. By law.

Whatever happens there is no traceback, no partial file, and an exit code that does not lie.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.processes import heard
from tests.sampled import sampled

long = sampled(1)  # of the proofs below that take seconds each

MAIN = "import sys; from lockstep.parity.cli import main; sys.exit(main())"
LOCKSTEP = [sys.executable, "-c", MAIN]
TRACE = {"format": "lockstep-trace", "version": "1", "tokens": "[1]"}


def start(*arguments, **options):
    return subprocess.Popen([*LOCKSTEP, *map(str, arguments)], **options)


def run(*arguments, **options):
    options = {"capture_output": True, "text": True} | options
    return subprocess.run([*LOCKSTEP, *map(str, arguments)], **options)


@pytest.fixture
def pair(tmp_path):
    """Two dumps that differ, with a report longer than a pipe's buffer."""
    rng = np.random.default_rng(0)
    tensors = {f"module.{i}": rng.standard_normal((1, 4)) for i in range(2500)}
    save_file(tensors, tmp_path / "left", TRACE)
    save_file({name: -value for name, value in tensors.items()}, tmp_path / "right", TRACE)
    return tmp_path / "left", tmp_path / "right"


@long
def test_a_reader_that_goes_away_changes_neither_quiet_nor_code(pair):
    for more in ((), ("--json", "-")):
        process = start("diff", *pair, *more, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait() == 1


@long
def test_generation_stops_when_nobody_reads(demo):
    many = ("generate", demo, "--prompt", "What is 2+2?", "--ignore-eos", "--max-tokens", "400")
    process = start(*many, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_a_full_output_is_told(plain):
    for command in (("taps", plain), ("taps", plain, "--json", "-")):
        with Path("/dev/full").open("w") as full:
            found = run(*command, capture_output=False, stdout=full, stderr=subprocess.PIPE)
        assert found.returncode == 2
        assert found.stderr.startswith("lockstep: error: ")
        assert "No space left on device\n" in found.stderr
        assert found.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_streams_do_no_harm(plain, closed):
    line = f'exec "$@" {closed}'
    found = subprocess.run(
        ["sh", "-c", line, "sh", *LOCKSTEP, "taps", plain], capture_output=True, text=True
    )
    assert found.returncode == 0
    assert found.stderr == ""


@long
def test_surroundings_do_not_matter(tmp_path, demo):
    for name in ("json", "numpy", "jinja2", "tokenizers", "conftest", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the folder')")
    command = [Path(sys.executable).parent / "lockstep", "generate", demo, "--prompt", "2+2?"]
    bare = {"PYTHONIOENCODING": "ascii", "LANG": "C", "COLUMNS": "0", "TERM": "dumb"}
    kept = {name: os.environ[name] for name in ("XDG_CACHE_HOME",) if name in os.environ}
    found = subprocess.run(command, cwd=tmp_path, env=bare | kept, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


@long
def test_optimised_python_and_strict_warnings_change_nothing(plain):
    for flags in (["-OO"], ["-X", "dev", "-W", "error"]):
        command = [LOCKSTEP[0], *flags, *LOCKSTEP[1:], "check", plain, "--tokens", "1,2"]
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == 0, (flags, found.stderr)
        assert found.stderr == ""


def until(condition) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not begin"
        time.sleep(0.01)


SIGNALS = [(signal.SIGINT, 130, b"lockstep: interrupted\n"), (signal.SIGTERM, 143, b"")]


@pytest.mark.parametrize(("kind", "code", "line"), [*SIGNALS, (signal.SIGHUP, 129, b"")])
def test_a_signal_ends_a_trace_without_a_trace_of_it(tmp_path, demo, kind, code, line):
    target = tmp_path / "t"
    target.write_bytes(b"")
    with heard(kind):
        process = start("trace", demo, "--tokens", "1,2", "--decode", "500", "-o", target,
                        stderr=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    until(lambda: any(p.stat().st_size > 100_000 for p in tmp_path.glob(".t.*")))
    process.send_signal(kind)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (code, b"", line)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert target.read_bytes() == b""


def test_a_kill_leaves_what_was_there_and_the_next_run_works(tmp_path, demo):
    target = tmp_path / "t"
    run("trace", demo, "--tokens", "1,2", "-o", target)
    before = target.read_bytes()
    process = start("trace", demo, "--tokens", "1,2", "--decode", "500", "-o", target)
    until(lambda: any(p.stat().st_size > 100_000 for p in tmp_path.glob(".t.*")))
    process.kill()
    process.wait()
    assert target.read_bytes() == before
    assert run("trace", demo, "--tokens", "1,2", "-o", target).returncode == 0
    assert target.read_bytes() == before


def on_terminal(*arguments) -> tuple[int, str]:
    """Run with standard error on a terminal of its own."""
    ours, theirs = pty.openpty()
    begin = "from lockstep.parity import progress as p;"
    at_once = begin + "p.Progress.__init__.__kwdefaults__['after'] = 0;"
    command = [sys.executable, "-c", at_once + MAIN, *map(str, arguments)]
    environment = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, env=environment)
    process.communicate()
    os.close(theirs)
    shown = os.read(ours, 1 << 20).decode()
    os.close(ours)
    return process.returncode, shown


@long
def test_progress_is_shown_on_a_terminal_and_wiped(plain):
    code, shown = on_terminal("check", plain, "--tokens", "1,2", "--backend", "cpu")
    assert code == 0
    assert "model.layers.0" in shown and "4/4 logits" in shown
    assert shown.endswith("\r\x1b[2K")


@long
def test_no_progress_in_a_file(plain):
    assert run("check", plain, "--tokens", "1,2").stderr == ""


@long
def test_json_on_a_process_is_json_alone(plain):
    found = run("check", plain, "--tokens", "1,2", "--json", "-")
    assert json.loads(found.stdout)["verdict"] == "parity"
    assert found.stderr == ""


def test_bad_input_as_a_process(tmp_path):
    found = run("inspect", tmp_path / "missing")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"lockstep: error: {tmp_path / 'missing'}: no such folder\n"
