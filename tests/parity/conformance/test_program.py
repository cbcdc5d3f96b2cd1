"""Programs behind the pipe: the example worker is right, and no fault of one does harm."""

import json
import sys
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
import safetensors.numpy

from lockstep.parity.conformance import example_worker
from lockstep.parity.conformance.backends.program import Program
from lockstep.parity.conformance.blob import decode, encode
from lockstep.parity.conformance.case import Case, Given
from lockstep.parity.conformance.protocol import request
from tests.sampled import sampled

WORKER = Path(example_worker.__file__)
FLOAT32 = np.dtype(np.float32)
OPERATIONS = ["linear", "rms_norm", "rope", "silu", "softmax", "swiglu"]


@sampled(0)
def test_the_example_worker_conforms(lockstep, tmp_path):
    """Python without Lockstep: -I leaves its folder and the working folder out of the path."""
    command = f"{sys.executable} -I {WORKER}"
    said = lockstep("conformance", "--exec", command, "--examples", 40, "--json", tmp_path / "f")
    assert said.code == 0, said
    rows = json.loads((tmp_path / "f").read_text())["ops"]
    assert [row["op"] for row in rows if row["status"] == "ok"] == OPERATIONS
    assert {row["status"] for row in rows} == {"ok", "not implemented"}


def test_the_example_worker_knows_nothing_of_lockstep():
    text = WORKER.read_text()
    assert "import lockstep" not in text and "from lockstep" not in text
    assert len(text.splitlines()) < 150


@pytest.fixture
def worker(tmp_path):
    """Write the example worker with a fault, and return the command for it."""

    def spoilt(old, new):
        text = WORKER.read_text()
        assert old in text
        path = tmp_path / "worker.py"
        path.write_text(text.replace(old, new))
        return f"{sys.executable} {path}"

    return spoilt


def test_a_wrong_worker_is_caught(lockstep, worker):
    """By hand: eps outside of the root."""
    command = worker("keepdims=True) + x.dtype.type(eps))", "keepdims=True)) + x.dtype.type(eps)")
    said = lockstep("conformance", "--exec", command, "--op", "rms_norm")
    assert said.code == 1
    assert "rms_norm differs; the smallest example:" in said.out


ANSWER = '    return write(stream, "result", number, {"out": out})'
FAULTS = {
    "hangs": (ANSWER, "    import time; time.sleep(60)", "no answer within 1 s"),
    "dies": (ANSWER, "    sys.exit('out of paper')",
             "ended with exit code 1 after 0 bytes of an answer; its last words: 'out of paper'"),
    "is killed": (ANSWER, "    import os; os.kill(os.getpid(), 9)", "ended with signal 9"),
    "prints": (ANSWER, "    stream.write(b'computing ...'); stream.flush()",
               "wrote 'computing ...', which is no message: does it print to standard output?"),
    "writes rubbish": (ANSWER, "    stream.write((40).to_bytes(8, 'little') + b'x' * 40)\n"
                       "    stream.flush()", "40 bytes that are no safetensors file"),
    "stops half way": (ANSWER, "    stream.write((40).to_bytes(8, 'little') + b'x'); sys.exit(0)",
                       "ended with exit code 0 after 9 bytes of an answer"),
    "writes more": (ANSWER, ANSWER.replace("return ", "") + "\n    stream.write(b'more' * 9)\n"
                    "    stream.flush()", "wrote 'moremoremore"),
    "answers another": ('about["id"], OPERATIONS', '"77", OPERATIONS',
                        "an answer to call '77', but call 1 was made"),
    "has two results": (ANSWER, ANSWER.replace("}", ', "more": out}'), "should be 'out' alone"),
    "says something else": (ANSWER, ANSWER.replace('"result"', '"maybe"'),
                            "answered with the kind 'maybe'"),
}  # fmt: skip


def patience(fault):
    """Return the seconds that an answer may take: few only where none comes, for Python starts
    within them."""
    return 1 if "sleep" in fault else 30


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_and_the_run_ends(lockstep, worker, fault):
    old, new, core = FAULTS[fault]
    command = worker(old, new)
    said = lockstep("conformance", "--exec", command, "--op", "silu", "--timeout", patience(new))
    assert said.code == 1 and said.err == "", said
    failed = [line for line in said.out.splitlines() if line.startswith("silu failed: ")]
    assert len(failed) == 1 and core in failed[0], said.out


def test_an_error_of_one_example_is_told_with_it(lockstep, worker):
    command = worker("    return x / (1 + np.exp(-x))", "    raise ValueError('no kernel')")
    said = lockstep("conformance", "--exec", command, "--op", "silu")
    assert said.code == 1
    assert "# said: 'ValueError: no kernel'" in said.out
    assert "x = np.array([[[0.0]]], np.float32)" in said.out


def test_a_worker_that_always_breaks_is_given_up(lockstep, worker):
    command = worker(
        '    number, operation = about["id"]', "    sys.exit(3)\n    number, operation = 1"
    )
    said = lockstep("conformance", "--exec", command)
    assert said.code == 1
    assert "44 operations: 3 failed, 41 not tried" in said.out
    assert "add_lora_rows failed: ended with exit code 3" in said.out


HELLO = 'write(out, "hello", about["id"])'


@pytest.mark.parametrize(
    ("new", "core"),
    [
        ("sys.exit('no licence')", "its last words: 'no licence'"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
        (HELLO.replace('about["id"]', 'about["id"], version="2"'), "'2'), but should be"),
        (HELLO.replace('"hello"', '"result"'), "answered hello with 'result'"),
    ],
)
def test_a_worker_that_cannot_begin_is_bad_input(refuses, worker, new, core):
    refuses(core, "conformance", "--exec", worker(HELLO, new), "--timeout", patience(new))


@pytest.mark.parametrize(
    ("command", "core"),
    [
        ("no-such-program-here", "cannot be started: No such file or directory"),
        ("true", "ended with exit code 0 after 0 bytes of an answer"),
        # Its pipe breaks before it has ended: the line is the same.
        (
            "sh -c 'exec 0<&-; sleep 0.3; exit 3'",
            "ended with exit code 3 after 0 bytes of an answer",
        ),
        ("a 'quote", "No closing quotation"),
        ("", "names no program"),
    ],
)
def test_no_worker_is_bad_input(refuses, command, core):
    refuses(core, "conformance", "--exec", command)


def test_nothing_is_left_running(worker):
    """By hand: what the worker started ends with it."""
    program = Program(worker("def main():", "import subprocess\nCHILD = subprocess.Popen("
                             "['sleep', '60'])\n\n\ndef main():"), seconds=10)  # fmt: skip
    group = program.pipe.process.pid
    assert members(group)
    program.close()
    until = monotonic() + 30  # the kernel ends what was killed when it gets to it
    while members(group) and monotonic() < until:
        sleep(0.01)
    assert members(group) == []


def members(group: int) -> list[Path]:
    return [stat for stat in Path("/proc").glob("[0-9]*/stat") if group_of(stat) == group]


def group_of(stat: Path) -> int | None:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[2])


def test_a_request_is_a_safetensors_file():
    """By witness: the safetensors package reads it."""
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    case = Case("scale", {"x": Given(x, "x"), "by": Given(0.5, "0.5")}, FLOAT32)
    blob = request(case, 3)
    np.testing.assert_array_equal(safetensors.numpy.load(blob)["x"], x)
    _, about = decode(blob, "it")
    assert about == {
        "format": "lockstep-conformance", "version": "1", "kind": "call", "id": "3",
        "op": "scale", "dtype": "float32", "options": '{"by": 0.5}',
    }  # fmt: skip


def test_a_blob_comes_back():
    tensors = {"a": np.array([[1, 2]], np.int64), "b": np.array([True, False])}
    found, about = decode(encode(tensors, {"k": "v"}), "it")
    np.testing.assert_equal((found, about), (tensors, {"k": "v"}))
