"""An interrupted comparison goes on. By law: its result is that of one that ran through."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.diff import diff
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.replaying.oracle import Oracle
from lockstep.parity.resuming.journal import Journal
from lockstep.parity.resuming.kept_taps import KeptTaps
from tests.sampled import sampled

WITNESSES = Path(__file__).parents[2] / "witnesses"
MISTRAL, GEMMA = WITNESSES / "llama/mistral_window", WITNESSES / "gemma4/effective"


@pytest.fixture
def sides(lockstep, tmp_path):
    """Return what writes a right trace and that of a port with one wrong weight."""

    def write(model, *words):
        wrong = Path(shutil.copytree(model, tmp_path / "wrong" / model.name))
        shard = min(wrong.glob("*.safetensors"))
        raw = bytearray(shard.read_bytes())
        raw[-5] ^= 0x40
        shard.write_bytes(raw)
        left, right = tmp_path / "left", tmp_path / "right"
        assert lockstep("trace", model, *words, "-o", left).code == 0
        assert lockstep("trace", wrong, *words, "-o", right).code == 0
        return left, right

    return write


@pytest.fixture
def cut(monkeypatch, lockstep):
    """Return what runs a command until it has judged so many parts, and is interrupted."""

    def run(after, *words):
        added, left = KeptTaps.add, [after]

        def add(self, part, taps):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            added(self, part, taps)

        with monkeypatch.context() as patch:
            patch.setattr(KeptTaps, "add", add)
            said = lockstep(*words)
        assert said.code == 130 and "kept in " in said.err.splitlines()[-2]

    return run


TWO = ("--tokens", "3,14,15,9", "--tokens", "5,6", "--decode", "1")
ONE = ("--tokens", "3,14,15", "--decode", "2")
CASES = {
    "no model": (MISTRAL, ONE, False), "no model, batch": (MISTRAL, TWO, False),
    "model": (MISTRAL, ONE, True), "model, batch": (MISTRAL, TWO, True),
    "model, few taps": (MISTRAL, (*ONE, "--taps", "*.up_proj,model.layers.1"), True),
    "model, caches": (MISTRAL, (*ONE, "--taps", "*.cached_*,*.o_proj"), True),
    "model, shared keys": (GEMMA, ONE, True),
    "model, some tokens": (MISTRAL, (*ONE, "--positions", "last:2"), True),
    "model, some tokens, caches": (
        MISTRAL, (*ONE, "--positions", "last:2", "--taps", "*,*.cached_*"), True),
    "model, some tokens, batch": (MISTRAL, (*TWO, "--positions", "last:1"), True),
    "model, some tokens, shared keys": (GEMMA, (*ONE, "--positions", "1"), True),
}  # fmt: skip


@sampled(1, "model")
@pytest.mark.parametrize("case", CASES)
def test_the_result_is_that_of_a_comparison_that_ran_through(case, sides, cut, lockstep, tmp_path):
    model, words, judged = CASES[case]
    left, right = sides(model, *words)
    run = ("diff", left, right, *(("--model", model) if judged else ()), "--json", tmp_path / "j")
    through = lockstep(*run)
    document, journal = (tmp_path / "j").read_text(), tmp_path / "kept"
    for place in (2, 3):
        cut(place, *run, "--resume", journal)
    said = lockstep(*run, "--resume", journal)
    assert (said.code, said.out) == (through.code, through.out)
    assert (tmp_path / "j").read_text() == document
    assert "judged before" in said.err and not journal.exists()
    assert through.code == 1 or "few" in case or "caches" in case


def test_what_was_judged_is_not_judged_again(sides, cut, tmp_path, monkeypatch):
    left, right = map(open_dump, sides(MISTRAL, *ONE))
    model, calls = reference.load(MISTRAL), []
    through = diff(left, right, model=model)
    cut(5, "diff", left.path, right.path, "--model", MISTRAL, "--resume", tmp_path / "kept")
    judge = Oracle.judge
    monkeypatch.setattr(Oracle, "judge", lambda *all: calls.append(1) or judge(*all))
    with KeptTaps(tmp_path / "kept", left, right, model) as kept:
        again = diff(left, right, model=model, kept=kept)
    stages = 3 * (model.config.num_hidden_layers + 2)
    assert len(calls) == stages - 5
    assert repr(again) == repr(through)  # every figure to the bit, NaN too


def test_another_comparison_is_refused_and_nothing_is_lost(sides, cut, refuses, lockstep, tmp_path):
    left, right = sides(MISTRAL, *ONE)
    journal = tmp_path / "kept"
    run = ("diff", left, right, "--resume", journal)
    cut(3, *run)
    kept = journal.read_bytes()
    refuses("is of a run with left ", "diff", right, right, "--resume", journal)
    refuses("is of a run with model null", *run, "--model", MISTRAL)
    refuses("no journal of such a run", "trace", MISTRAL, "--tokens", "1", "--resume", "-o",
            renamed(journal, tmp_path / "t"))  # fmt: skip
    raw = right.read_bytes()
    right.write_bytes(raw)  # the same bytes, but who knows: it was written anew
    refuses("is of a run with right ", *run)
    assert journal.read_bytes() == kept
    assert lockstep("diff", left, right).code == 1


def renamed(journal, target):
    """Put a copy of a journal where that of a trace would stand."""
    shutil.copy(journal, target.with_name(f"{target.name}.part.journal"))
    return target


def test_a_torn_line_is_dropped_and_nonsense_refused(sides, cut, refuses, lockstep, tmp_path):
    left, right = sides(MISTRAL, *ONE)
    journal = tmp_path / "kept"
    run = ("diff", left, right, "--resume", journal)
    through = lockstep(*run)
    cut(3, *run)
    lines = journal.read_text().splitlines(keepends=True)
    good = json.loads(lines[1])
    for bad in ({}, good | {"taps": [{}]}, good | {"taps": [7]}, good | {"part": 7},
                good | {"taps": [good["taps"][0] | {"rms_rel": "0"}]},
                good | {"taps": [good["taps"][0] | {"status": None}]},
                good | {"taps": [good["taps"][0] | {"histogram": {"zero": 1}}]}):  # fmt: skip
        journal.write_text("".join([lines[0], json.dumps(bad) + "\n", *lines[2:]]))
        refuses("holds a record that is no judgement", *run)
    journal.write_text("".join(lines)[:-7])
    said = lockstep(*run)
    assert (said.code, said.out) == (through.code, through.out)
    assert "2 taps judged before" in said.err


def test_files_that_are_no_journal_are_left_alone(refuses, sides, tmp_path):
    left, right = sides(MISTRAL, *ONE)
    before = right.read_bytes()
    refuses("is also read by this command", "diff", left, right, "--resume", right)
    refuses("is a folder", "diff", left, right, "--resume", tmp_path)
    refuses("name two files", "diff", left, right, "--resume", tmp_path / "j", "--json",
            tmp_path / "j")  # fmt: skip
    assert right.read_bytes() == before and not (tmp_path / "j").exists()


def test_a_file_that_is_no_journal_is_not_taken_for_one(refuses, sides, tmp_path):
    """By hand: an empty file is somebody's, a folder that is read is left as it is."""
    left, right = sides(MISTRAL, *ONE, "--taps", "logits")
    (tmp_path / "mine").touch()
    refuses("exists and is no journal", "diff", left, right, "--resume", tmp_path / "mine")
    (tmp_path / "text").write_text("mine\n")
    refuses("is no journal of such a run", "diff", left, right, "--resume", tmp_path / "text")
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    np.save(arrays / "logits.npy", np.ones((1, 3, 4), np.float32))
    refuses("lies in the folder that is read", "diff", arrays, arrays, "--resume", arrays / "j")
    for name in ("", "-"):
        refuses("is no name of a file to write", "diff", left, right, "--resume", name)
    assert (tmp_path / "mine").exists() and len(list(arrays.iterdir())) == 1


def test_what_would_keep_nothing_is_refused(refuses, lockstep, sides, tmp_path):
    """By hand: no journal is left behind; some tokens are kept like all."""
    journal = tmp_path / "j"
    words = ("--tokens", "3,14,15", "--taps", "model.norm,logits")
    left, right = sides(MISTRAL, *words, "--positions", "last:1")
    run = ("diff", left, right, "--resume", journal)
    assert lockstep(*run, "--model", MISTRAL).code == lockstep(*run).code == 1
    assert lockstep("trace", MISTRAL, *words, "--sketch", "-o", left).code == 0
    refuses("sketches are compared in seconds", *run)
    refuses("sketches are compared in seconds", *run, "--model", MISTRAL)
    assert not journal.exists()


def test_a_full_disk_names_the_journal(disk_full_at, sides, lockstep, tmp_path):
    """By hand: /dev/full takes nothing; what was judged before is kept, and that is said."""
    left, right = sides(MISTRAL, *ONE, "--taps", "model.norm,logits")
    run = ("diff", left, right, "--resume", tmp_path / "j")
    third = lambda self, record: len(self.path.read_bytes().splitlines()) == 3  # noqa: E731
    said = disk_full_at(Journal, "add", third, lambda self: self.file, lambda: lockstep(*run))
    assert said.code == 2 and said.err.count("\n") == 1
    assert "j: cannot be written: No space left on device (2 taps kept in " in said.err
    assert "2 taps judged before" in lockstep(*run).err


def test_a_folder_of_arrays_is_known_again(cut, lockstep, refuses, tmp_path):
    for name, more in (("left", 0), ("right", 1)):
        (tmp_path / name).mkdir()
        for tap in ("model.norm", "logits"):
            np.save(tmp_path / name / f"{tap}.npy", np.ones((1, 3, 4), np.float32) + more)
    run = ("diff", tmp_path / "left", tmp_path / "right", "--resume", tmp_path / "kept")
    cut(1, *run)
    said = lockstep(*run)
    assert said.code == 1 and "1 tap judged before" in said.err
    cut(1, *run)
    np.save(tmp_path / "right/logits.npy", np.zeros((1, 3, 4), np.float32))
    refuses("is of a run with right ", *run)
