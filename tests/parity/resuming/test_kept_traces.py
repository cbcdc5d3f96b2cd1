"""What an interrupted trace leaves: what is taken over, what is refused, and what is said of it."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.resuming.journal import Journal
from lockstep.parity.resuming.kept_trace import what_is_kept
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


def test_a_disk_that_is_full_for_the_journal_keeps_what_is_there(
    cut, monkeypatch, tmp_path, lockstep, plain
):
    """By hand: /dev/full takes nothing; the lines before stand, and the error names the file."""
    run = ("trace", plain, "--tokens", "1,2", "--resume", "-o", tmp_path / "t")
    add = Journal.add

    def adding(self, record):
        if record.get("name") == "model.layers.1":
            os.dup2(os.open("/dev/full", os.O_WRONLY), self.file.fileno())
        add(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", adding)
        said = lockstep(*run)
    assert said.code == 2 and said.err.count("\n") == 1
    assert "t.part.journal: cannot be written: No space left on device (" in said.err
    assert "taps kept in " in said.err
    said = lockstep(*run)
    assert said.code == 0 and "from the run that was interrupted" in said.out


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
