"""Traces of some tokens and of sketches go on too, though no layer can be made from what they hold.

By law: their bits are those of a run that was not interrupted.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import fast, reference
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.excerpts import whole_run
from lockstep.parity.resuming.later import Later
from lockstep.reference import ops
from lockstep.reference.checkpoint.errors import InputError
from tests.sampled import sampled

WITNESSES = Path(__file__).parents[2] / "witnesses"
MODELS = ["models/untied_float32", "models/affine_mixed", "gpt2/original", "qwen3_moe/fused",
          "gemma4/sparse", "gemma4/effective", "mistral_window"]  # fmt: skip
PROMPT, BATCH = [3, 14, 15, 9, 26], [[3, 14, 15], [9, 2, 6]]
SOME, SKETCHES = {"at": "last:2"}, {"sketched": True}
BOTH = pytest.mark.parametrize("some", [SOME, SKETCHES], ids=["positions", "sketches"])


def load(name, backend="reference", dtype="float32"):
    folder = WITNESSES / ("llama/" * name.startswith("mistral") + name)
    if backend == "reference":
        return reference.load(folder, dtype=dtype)
    return fast.load(folder, backend=backend, dtype=dtype)


@sampled(3, "gemma4/sparse-positions")
@BOTH
@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_goes_on(check_cuts, name, some):
    """In the middle of a layer of the prompt, at its end, and in a step."""
    check_cuts(load(name), PROMPT, (0.02, 0.2, 0.5, 0.9), **some)


@sampled(1, "cpu-sketches")
@BOTH
@pytest.mark.parametrize("backend", ["reference", "cpu", "mlx"])
def test_batches_in_half_precision_go_on(check_cuts, backend, some):
    model = load("models/untied_float32", backend, "bfloat16")
    check_cuts(model, BATCH, (0.1, 0.4, 0.8), decode=2, **some)


@BOTH
@pytest.mark.parametrize("globs", [["*.up_proj", "logits"], ["*.cached_*"], ["model.layers.?"]])
def test_chosen_taps_go_on(check_cuts, globs, some):
    check_cuts(load("models/untied_float32"), PROMPT, (0.3, 0.7), globs, decode=2, **some)


@pytest.mark.parametrize("at", ["last:1,0", "first:2", "0:5"])
def test_any_tokens_of_unequal_prompts_go_on(check_cuts, at):
    check_cuts(load("gemma4/effective"), [PROMPT, [*PROMPT[::-1], 7]], (0.3, 0.6), decode=0, at=at)


def test_sketches_of_some_tokens_go_on(check_cuts):
    check_cuts(load("gemma4/effective"), PROMPT, (0.2, 0.7), decode=2, **SOME, **SKETCHES)


@BOTH
def test_layers_that_are_behind_are_not_run_again(cut, tmp_path, monkeypatch, some):
    """By hand: cut before the logits, what is left is the head."""
    model, told = load("models/untied_float32"), {"globs": None, "decode": 0, **some}
    whole = trace_run(model, PROMPT, tmp_path / "whole", **told)
    cut(whole["taps"] - 1, model, PROMPT, tmp_path / "t", **told)
    linear, called = ops.linear, []
    monkeypatch.setattr(ops, "linear", lambda *all: called.append(1) or linear(*all))
    made = trace_run(model, PROMPT, tmp_path / "t", **told, resume=True)
    assert made["resumed"] == {"taps": whole["taps"] - 1, "again": 0} and len(called) == 1


@BOTH
@pytest.mark.parametrize("decode", [0, 1])
def test_a_lost_stream_is_made_again(cut, tmp_path, some, decode):
    model, told = load("gemma4/effective"), {"globs": None, "decode": decode, **some}
    trace_run(model, PROMPT, tmp_path / "whole", **told)
    cut(40, model, PROMPT, tmp_path / "t", **told)
    for slot in tmp_path.glob("t.part.stream*"):
        slot.write_bytes(slot.read_bytes()[:-1] + b"!")
    made = trace_run(model, PROMPT, tmp_path / "t", **told, resume=True)
    assert made["resumed"]["again"] > 0
    assert (tmp_path / "t").read_bytes() == (tmp_path / "whole").read_bytes()


def test_shared_keys_are_made_again_a_layer_at_a_time(cut, tmp_path, monkeypatch):
    """By hand: each operation waits for those before it, at most for those of a layer and its
    input; and what is made again is counted."""
    model, told = load("gemma4/effective"), {"globs": None, "decode": 0, **SOME}
    cut(80, model, PROMPT, tmp_path / "t", **told)
    make, within, deepest = Later.now, [0], [0]

    def now(self):
        within[0] += 1
        deepest[0] = max(deepest[0], within[0])
        try:
            return make(self)
        finally:
            within[0] -= 1

    monkeypatch.setattr(Later, "now", now)
    made = trace_run(model, PROMPT, tmp_path / "t", **told, resume=True)
    assert made["resumed"]["again"] > 0 and 10 < deepest[0] <= 20


def test_other_tokens_or_another_kind_are_another_run(cut, refuses, lockstep, tmp_path, plain):
    """By hand: each is named and nothing is touched; a text that means the same tokens goes on."""
    run = ("trace", plain, "--tokens", "1,2,3", "--resume", "-o", tmp_path / "t")
    cut(30, reference.load(plain), [1, 2, 3], tmp_path / "t", globs=None, decode=0, at="last:1")
    kept = {path: path.read_bytes() for path in tmp_path.glob("t.*")}
    refuses("positions '[2]', but here it is '[1, 2]'", *run, "--positions", "last:2")
    refuses("positions '[2]', but here it is null", *run)
    refuses("but here it is true", *run, "--positions", "2", "--sketch")
    assert {path: path.read_bytes() for path in tmp_path.glob("t.*")} == kept
    said = lockstep(*run, "--positions", "2")
    assert said.code == 0 and "\n30 taps of it from the run that was interrupted" in said.out


def test_a_prompt_that_is_fed_in_parts_is_refused(monkeypatch, tmp_path):
    """Layers come to no end before the prompt does: nothing is begun."""
    monkeypatch.setattr(whole_run, "SCORES", 200)
    with pytest.raises(InputError, match="--resume: this prompt goes through the reference in"):
        trace_run(load("models/untied_float32"), PROMPT, tmp_path / "t", globs=None, decode=0,
                  at="last:1", resume=True)  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_unequal_prompts_cannot_be_sketched(tmp_path):
    with pytest.raises(InputError, match="unequal prompts cannot be sketched"):
        trace_run(load("models/untied_float32"), [[1], [2, 3]], tmp_path / "t", globs=None,
                  decode=0, sketched=True, resume=True)  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_sketches_that_say_nonsense_are_refused(cut, refuses, tmp_path, plain):
    cut(5, reference.load(plain), [1, 2], tmp_path / "t", globs=None, decode=0, sketched=True)
    journal = tmp_path / "t.part.journal"
    lines = journal.read_text().splitlines(keepends=True)
    good = json.loads(lines[1])
    dtype, shape, digest, infinite, nan = good["sketch"]
    for bad in (
        None, [], ["F7", shape, digest, infinite, nan], [dtype, [2], digest, infinite, nan],
        [dtype, "1", digest, infinite, nan], [dtype, shape, "?", infinite, nan],
        [dtype, shape, digest, infinite, -1], [dtype, [10**14], digest, infinite, nan],
    ):  # fmt: skip
        journal.write_text("".join([lines[0], json.dumps(good | {"sketch": bad}) + "\n"]))
        refuses("says too little", "trace", plain, "--tokens", "1,2", "--sketch", "--resume",
                "-o", tmp_path / "t")  # fmt: skip


KILLED = """
import os, signal, sys
from lockstep.parity.cli import main
from lockstep.parity.resuming.journal import Journal
written = Journal.put
def put(self, record):
    if sum(1 for _ in self.path.open("rb")) == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    return written(self, record)
Journal.put = put
main(sys.argv[1:])
"""


@pytest.mark.parametrize("some", [("--positions", "last:2"), ("--sketch",)])
def test_a_process_that_is_killed_leaves_what_it_had(lockstep, tmp_path, plain, some):
    run = ("trace", plain, "--tokens", "1,2,3", "--decode", "1", *some, "-o")
    words = [sys.executable, "-c", KILLED, *map(str, run), tmp_path / "t", "--resume"]
    assert subprocess.run(words, capture_output=True).returncode == -signal.SIGKILL
    said = lockstep(*run, tmp_path / "t", "--resume")
    assert said.code == 0 and " taps of it from the run" in said.out
    assert lockstep(*run, tmp_path / "whole").code == 0
    assert (tmp_path / "t").read_bytes() == (tmp_path / "whole").read_bytes()
