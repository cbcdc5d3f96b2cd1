"""What an interrupted trace leaves: what is taken over, what is refused, and what is said of it."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.dumps import tracing
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.resuming.journal import Journal
from lockstep.parity.resuming.kept_trace import KeptTrace, what_is_kept
from lockstep.parity.resuming.surroundings import surroundings
from lockstep.reference import ops
from lockstep.reference.checkpoint.errors import InputError

WITNESSES = Path(__file__).parents[2] / "witnesses"
PROMPT = [3, 14, 15, 9, 26]


def test_what_a_step_is_fed_is_a_token_of_each_row(cut, refuses, tmp_path, plain):
    """By hand: one row, so one token, below the vocabulary's size, for at most so many steps."""
    cut(1, reference.load(plain), [1], tmp_path / "t", globs=["logits"], decode=1)
    journal = tmp_path / "t.part.journal"
    lines = journal.read_text().splitlines(keepends=True)
    good = json.loads(next(line for line in lines if '"name"' in line))
    run = ("trace", plain, "--tokens", "1", "--decode", "1", "--taps", "logits", "--resume", "-o",
           tmp_path / "t")  # fmt: skip
    for bad, core in (
        ({"fed": None}, "t.part.journal: feeds null, which is no token"),
        ({"fed": [1, 2]}, "feeds [1, 2], which"),
        ({"fed": [10**9]}, "feeds [1000000000], which"),
        ({"fed": ["1"]}, "feeds ['1'], which"),
        ({"fed": [1]}, "feeds 2 steps, but there are 1"),
        (good | {"name": "model.norm"}, "model.norm"),
        (good | {"name": "step.2/logits"}, "step.2/logits"),
        (good | {"name": "step.1/nonsense"}, "step.1/nonsense"),
    ):
        others = [line for line in lines if '"name"' not in line or "name" not in bad]
        body = lines if bad == {"fed": [1]} else [one for one in others if '"fed"' not in one]
        journal.write_text("".join([*body, json.dumps(bad) + "\n"]))
        refuses(core, *run)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_other_threads_are_another_run(cut, monkeypatch, tmp_path, name):
    """A list is a number of threads to OpenMP, and nothing to be read here."""
    model, told = reference.load(WITNESSES / "gpt2/original"), {"globs": ["logits"], "decode": 0}
    monkeypatch.setenv(name, "4,2")
    cut(0, model, PROMPT, tmp_path / "t", **told)
    monkeypatch.setenv(name, "1")
    with pytest.raises(InputError, match=f"{name} .4,2., but here it is .1."):
        trace_run(model, PROMPT, tmp_path / "t", **told, resume=True)


def test_another_order_of_adding_is_another_run(monkeypatch):
    """By law: a library whose products add from behind has other bits, though nothing says so."""
    here, matmul = surroundings("reference"), np.matmul
    monkeypatch.setattr(np, "matmul", lambda a, b: matmul(a[:, ::-1].copy(), b[::-1].copy()))
    there = surroundings("reference")
    assert [key for key in here if here[key] != there[key]] == ["matrix products"]


@pytest.mark.parametrize("name", ["models/untied_float32", "gemma4/effective"])
def test_a_run_without_a_tap_so_far_goes_on_from_its_stream(cut, tmp_path, monkeypatch, name):
    """By hand: of all layers only the head is left."""
    model, told = reference.load(WITNESSES / name), {"globs": ["logits"], "decode": 0}
    trace_run(model, PROMPT, tmp_path / "whole", **told)
    cut(0, model, PROMPT, tmp_path / "t", **told)
    assert what_is_kept(tmp_path / "t") == "a layer's result"
    linear, called = ops.linear, []
    monkeypatch.setattr(ops, "linear", lambda *all: called.append(1) or linear(*all))
    made = trace_run(model, PROMPT, tmp_path / "t", **told, resume=True)
    assert made["resumed"] == {"taps": 0, "again": 0} and len(called) == 1
    assert (tmp_path / "t").read_bytes() == (tmp_path / "whole").read_bytes()


def test_whatever_lies_beside_a_trace_a_run_without_resume_is_not_hurt(tmp_path):
    """By hand: what is no record ends the count."""
    journal = tmp_path / "t.part.journal"
    tap, fed = b'{"name": "logits"}\n', b'{"fed": [1]}\n'
    for raw, kept in (
        (b"", ""), (b"7\n7\n", ""), (b"{}\n" + b"[" * 10**5, ""), (b"\xff\n\xff", ""),
        (b"{}\n" + tap + tap + b"7\n" + tap, "2 taps"), (b"{}\n" + fed, "a layer's result"),
    ):  # fmt: skip
        journal.write_bytes(raw)
        assert what_is_kept(tmp_path / "t") == kept


def is_layer(name):
    return name == "model.layers.1"


# What finds the disk full: whose method, when, and which of its files.
FULL = {
    "a tensor": (KeptTrace, "put", lambda self, name, value: is_layer(name),
                 lambda self: self.writer.body),
    "a line": (Journal, "add", lambda self, record: is_layer(record.get("name")),
               lambda self: self.file),
    "the header": (KeptTrace, "complete", lambda self: True, lambda self: self.writer.body),
}  # fmt: skip


@pytest.mark.parametrize("what", FULL)
def test_a_full_disk_keeps_what_is_there(disk_full_at, tmp_path, lockstep, plain, what):
    """The error names what had no room. The same command goes on from there, to the same bits."""
    run = ("trace", plain, "--tokens", "1,2", "--resume", "-o", tmp_path / "t")
    said = disk_full_at(*FULL[what], lambda: lockstep(*run))
    assert said.code == 2 and said.err.count("\n") == 1
    name = "t.part.journal" if what == "a line" else "t"
    assert f"{name}: cannot be written: No space left on device (" in said.err
    assert "taps kept in " in said.err and not (tmp_path / "t").exists()
    said = lockstep(*run)
    assert said.code == 0 and "from the run that was interrupted" in said.out
    lockstep("trace", plain, "--tokens", "1,2", "-o", tmp_path / "whole")
    assert (tmp_path / "t").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["t", "whole"]


@pytest.mark.parametrize("more", [[], ["--sketch"]])
def test_a_disk_that_is_full_for_the_whole_file_keeps_all(
    monkeypatch, tmp_path, lockstep, plain, more
):
    """By hand: no room for a header before the tensors, so all is copied; a disk says that it is
    full when it is asked to hold that. A file of sketches is another one anyhow."""
    run = ["trace", plain, "--tokens", "1,2", *more]
    kept = [*run, "--resume", "-o", tmp_path / "t"]

    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tracing, "header_room", lambda *all: 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        said = lockstep(*kept)
    assert said.code == 2 and "t: cannot be written: No space left on device (" in said.err
    assert "taps kept in" in said.err and not (tmp_path / "t").exists()
    left = {one.name for one in tmp_path.iterdir()}
    assert {"t.part", "t.part.journal"} <= left and all(name.startswith("t.part") for name in left)
    assert lockstep(*kept).code == 0
    assert lockstep(*run, "-o", tmp_path / "whole").code == 0
    assert (tmp_path / "t").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["t", "whole"]


def test_how_to_begin_anew_is_said_and_works(cut, refuses, lockstep, tmp_path, plain):
    cut(1, reference.load(plain), [1], tmp_path / "t", globs=["logits"], decode=1)
    run = ("trace", plain, "--tokens", "2", "--taps", "logits", "--resume", "-o", tmp_path / "t")
    refuses("delete t.part and t.part.journal to begin anew", *run)
    (tmp_path / "t.part.journal").unlink()
    refuses("t.part: exists, and no journal says", *run)
    (tmp_path / "t.part").unlink()
    assert lockstep(*run).code == 0


@pytest.mark.parametrize("end", ["", ".journal", ".stream0", ".stream1"])
def test_the_json_does_not_go_over_what_is_kept(refuses, tmp_path, plain, end):
    refuses("is where --resume keeps what is written of t", "trace", plain, "--tokens", "1", "-o",
            tmp_path / "t", "--json", tmp_path / f"t.part{end}")  # fmt: skip


def test_modules_of_transformers_are_refused(refuses, tmp_path, plain):
    refuses("--resume: does not go with transformers", "trace", plain, "--tokens", "1",
            "--backend", "transformers", "--resume", "-o", tmp_path / "t")  # fmt: skip
