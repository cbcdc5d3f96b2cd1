"""An interrupted trace goes on where it stopped. By law: its bits are those of one that was not."""

import fcntl
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.resuming.kept_trace import KeptTrace
from lockstep.parity.resuming.layout import laid_out, layout_of
from lockstep.reference import ops
from lockstep.reference.checkpoint.errors import InputError
from tests.sampled import sampled

WITNESSES = Path(__file__).parents[2] / "witnesses"
MODELS = {
    "qwen3": "models/untied_float32", "packed": "models/affine_mixed",
    "llama": "llama/llama_dynamic", "mistral": "llama/mistral_window", "gpt2": "gpt2/original",
    "moe": "qwen3_moe/fused", "gemma dense": "gemma4/dense", "gemma sparse": "gemma4/sparse",
    "gemma shared": "gemma4/effective",
}  # fmt: skip
PROMPT, BATCH = [3, 14, 15, 9, 26], [[3, 14, 15], [9, 2]]


def load(name, backend, dtype="float32"):
    folder = WITNESSES / MODELS[name]
    if backend == "reference":
        return reference.load(folder, dtype=dtype)
    return fast.load(folder, backend=backend, dtype=dtype)


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_goes_on_from_any_tap(check_cuts, name):
    """In the middle of a layer, behind the last tap of a step, and in a step: nothing twice."""
    assert check_cuts(load(name, "reference"), PROMPT, (0.2, 0.5, 0.9)) == 0


@sampled(1, "qwen3-cpu")
@pytest.mark.parametrize("backend", ["cpu", "mlx"])
@pytest.mark.parametrize("name", ["qwen3", "packed"])
def test_every_backend_goes_on(check_cuts, name, backend):
    assert check_cuts(load(name, backend), PROMPT, (0.3, 0.7)) == 0


@pytest.mark.parametrize("backend", ["reference", "cpu", "mlx"])
def test_half_precision_and_batches_go_on(check_cuts, backend):
    model = load("qwen3", backend, "bfloat16")
    assert check_cuts(model, BATCH, (0.4, 0.8), decode=2) == 0


@pytest.mark.parametrize("globs", [["*.up_proj", "logits"], ["*.cached_*"], ["model.layers.?"]])
def test_chosen_taps_alone_go_on_too(check_cuts, globs):
    """What a step needs of earlier ones, and is in no file, is made again: and that is said."""
    again = check_cuts(load("qwen3", "reference"), PROMPT, (0.7,), globs, decode=2)
    assert again > 0


@pytest.mark.parametrize("name", ["qwen3", "gemma shared"])
def test_layers_that_are_behind_are_not_run_again(cut, tmp_path, monkeypatch, name):
    """By hand: cut before the logits, where no layer's stream is a tap, there is but the head."""
    model, called = load(name, "reference"), []
    cut(1, model, PROMPT, tmp_path / "t", globs=["model.embed_tokens", "logits"], decode=0)
    linear = ops.linear
    monkeypatch.setattr(ops, "linear", lambda *all: called.append(1) or linear(*all))
    made = trace_run(model, PROMPT, tmp_path / "t", globs=["model.embed_tokens", "logits"],
                     decode=0, resume=True)  # fmt: skip
    assert made["resumed"] == {"taps": 1, "again": 0} and len(called) == 1


KILLED = """
import os, signal, sys
from lockstep.parity.cli import main
from lockstep.parity.resuming.kept_trace import KeptTrace
written = KeptTrace.__call__
def call(self, name, value):
    if self.count == 20:
        self.writer.body.write(b"torn")
        self.writer.body.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    written(self, name, value)
KeptTrace.__call__ = call
main(sys.argv[1:])
"""


def test_a_process_that_is_killed_leaves_what_it_had(lockstep, tmp_path, plain):
    run = ("trace", plain, "--tokens", "1,2,3", "--decode", "1", "--resume", "-o", tmp_path / "t")
    words = [sys.executable, "-c", KILLED, *map(str, run)]
    assert subprocess.run(words, capture_output=True).returncode == -signal.SIGKILL
    said = lockstep(*run)
    assert said.code == 0 and "\n20 taps of it from the run" in said.out
    trace_run(reference.load(plain), [1, 2, 3], tmp_path / "whole", globs=None, decode=1)
    assert (tmp_path / "t").read_bytes() == (tmp_path / "whole").read_bytes()


def spoil(path, change):
    raw = bytearray(path.read_bytes())
    change(raw)
    path.write_bytes(raw)


def flipped(raw):
    raw[-300] ^= 1


SPOILT = {
    "a torn tensor": ("t.part", lambda raw: raw.pop()),
    "a changed tensor": ("t.part", flipped),
    "no tensors": ("t.part", lambda raw: raw.clear()),
    "a torn line": ("t.part.journal", lambda raw: raw.pop()),
    "no lines": ("t.part.journal", lambda raw: raw.clear()),
    "a torn first line": ("t.part.journal", lambda raw: raw.__delitem__(slice(9, None))),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_torn_is_dropped_and_made_again(cut, tmp_path, name):
    model, told = load("qwen3", "reference"), {"globs": None, "decode": 1}
    whole = trace_run(model, PROMPT, tmp_path / "whole", **told)
    cut(30, model, PROMPT, tmp_path / "t", **told)
    file, change = SPOILT[name]
    spoil(tmp_path / file, change)
    made = trace_run(model, PROMPT, tmp_path / "t", **told, resume=True)
    assert made.get("resumed", {"taps": 0})["taps"] < 30 and made["taps"] == whole["taps"]
    assert (tmp_path / "t").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_lost_stream_is_made_again(cut, tmp_path):
    model, told = load("gemma shared", "reference"), {"globs": ["logits"], "decode": 1}
    trace_run(model, PROMPT, tmp_path / "whole", **told)
    cut(1, model, PROMPT, tmp_path / "t", **told)
    for slot in tmp_path.glob("t.part.stream*"):
        slot.unlink()
    made = trace_run(model, PROMPT, tmp_path / "t", **told, resume=True)
    assert made["resumed"]["again"] > 0
    assert (tmp_path / "t").read_bytes() == (tmp_path / "whole").read_bytes()


def test_another_run_is_refused_and_nothing_is_lost(cut, refuses, lockstep, tmp_path, plain):
    """Other tokens, taps, steps, dtype, weights: each is named, and the right run still goes on."""
    other = Path(shutil.copytree(plain, tmp_path / "other" / plain.name))
    shard = min(other.glob("*.safetensors"))
    spoil(shard, lambda raw: raw.__setitem__(-9, raw[-9] ^ 1))
    target = tmp_path / "t"
    cut(30, reference.load(plain), [1, 2], target, globs=None, decode=1)
    kept = {path: path.read_bytes() for path in tmp_path.glob("t.*")}
    right = ("trace", plain, "--decode", "1", "--resume", "-o", target)
    for core, *words in (
        ("tokens [1, 2], but here it is [1, 3]", *right, "--tokens", "1,3"),
        ('taps null, but here it is ["logits"]', *right, "--tokens", "1,2", "--taps", "logits"),
        ('dtype "float32"', *right, "--tokens", "1,2", "--dtype", "float64"),
        ("decode 1, but here it is 0", "trace", plain, "--tokens", "1,2", "--resume", "-o", target),
        ("weights ", "trace", other, "--tokens", "1,2", "--decode", "1", "--resume", "-o", target),
    ):
        core = core.replace('"', "'") if "'" in str(refuses("", *words)) else core
        refuses(core, *words)
        assert {path: path.read_bytes() for path in tmp_path.glob("t.*")} == kept
    said = lockstep(*right, "--tokens", "1,2")
    assert said.code == 0 and "30 taps of it from the run that was interrupted" in said.out


def test_foreign_files_are_left_alone(refuses, tmp_path, plain):
    run = ("trace", plain, "--tokens", "1", "--resume", "-o", tmp_path / "t")
    (tmp_path / "t.part").write_bytes(b"mine")
    refuses("no journal says that it is part of a trace", *run)
    for text in ("mine", "mine\n", "[]\n", '{"journal": "lockstep diff"}\n'):
        (tmp_path / "t.part.journal").write_text(text)
        refuses("is no journal of such a run", *run)
        assert (tmp_path / "t.part.journal").read_text() == text
    assert (tmp_path / "t.part").read_bytes() == b"mine"


def test_records_that_say_nonsense_are_refused(cut, refuses, tmp_path, plain):
    cut(5, reference.load(plain), [1], tmp_path / "t", globs=None, decode=0)
    journal = tmp_path / "t.part.journal"
    lines = journal.read_text().splitlines(keepends=True)
    good = json.loads(lines[1])
    run = ("trace", plain, "--tokens", "1", "--resume", "-o", tmp_path / "t")
    for bad, core in (
        ("[1]\n", "holds what is no record"),
        ("{}\n", "says too little"),
        (json.dumps(good | {"shape": [10**9, 10**9]}) + "\n", "says too little"),
        (json.dumps(good | {"offsets": [8, 4]}) + "\n", "do not lie one behind another"),
        (json.dumps(good | {"offsets": [0, 10**15]}) + "\n", "says too little"),
        (json.dumps(good | {"steps": [1, -9, 1]}) + "\n", "says too little"),
        (json.dumps(good | {"steps": [10**9, 1, 10**9]}) + "\n", "says too little"),
        (json.dumps(good | {"dtype": "F7"}) + "\n", "says too little"),
    ):
        journal.write_text("".join([lines[0], bad, *lines[2:]]))
        refuses(core, *run)


def test_two_runs_do_not_write_one_trace(cut, refuses, tmp_path, plain):
    model, told = reference.load(plain), {"globs": None, "decode": 0}
    with pytest.raises(InputError, match="another run is writing it"):
        stages = model.stages

        def twice(*all, **named):
            model.stages = stages
            trace_run(model, [1], tmp_path / "t", resume=True, **told)

        model.stages = twice
        trace_run(model, [1], tmp_path / "t", resume=True, **told)


def test_ctrl_c_says_what_is_kept_and_a_run_without_resume_too(
    monkeypatch, tmp_path, lockstep, plain
):
    run = ("trace", plain, "--tokens", "1,2", "-o", tmp_path / "t")
    with monkeypatch.context() as patch:
        patch.setattr(KeptTrace, "__call__", interrupted_after(7))
        said = lockstep(*run, "--resume")
    assert said.code == 130
    assert said.err.splitlines()[0].startswith("lockstep: 7 taps kept in ")
    said = lockstep(*run)
    assert said.code == 0 and "holds 7 taps of a run that did not end, and stays: " in said.err
    assert (tmp_path / "t.part").exists()
    with (tmp_path / "t.part.journal").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "t.part is being written by another run" in lockstep(*run).err


def interrupted_after(count):
    written = KeptTrace.__call__

    def call(self, name, value):
        if self.count == count:
            raise KeyboardInterrupt
        written(self, name, value)

    return call


def test_a_bad_run_that_wrote_nothing_leaves_nothing(tmp_path, plain):
    with pytest.raises(InputError, match="names nothing that cpu computes"):
        trace_run(fast.load(plain, backend="cpu"), [1], tmp_path / "t", globs=["*.scores"],
                  decode=0, resume=True)  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_an_array_comes_back_as_it_lay(dtype):
    """By hand: turned, cut out of a wider one, spread over a new axis, and plain."""
    numbers = np.arange(24).astype(dtype).reshape(2, 3, 4)
    for value in (numbers, numbers.transpose(0, 2, 1), numbers[..., 1:3], numbers[:, ::2],
                  np.broadcast_to(numbers[:1], (2, 3, 4))):  # fmt: skip
        back = laid_out(np.ascontiguousarray(value), layout_of(value), lambda array: array)
        assert back.strides == value.strides or layout_of(value) is None
        assert back.tobytes() == value.tobytes()


def test_an_array_of_mlx_comes_back_as_it_lay():
    value = mx.arange(24).astype(mx.float32).reshape(2, 3, 4).transpose(0, 2, 1)
    mx.eval(value)
    back = laid_out(np.array(value), layout_of(value), mx.array)
    assert layout_of(value) == [12, 1, 4] == layout_of(back)
    assert mx.array_equal(value, back)
