"""A trace holds the run that `generate` makes, to the bit, in memory that does not grow with it."""

import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.arrays import to_numpy
from lockstep.parity.diff import diff
from lockstep.parity.dumps import trace_file
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.tracing import check_globs, trace_run
from lockstep.parity.replaying.taps import taps_of
from lockstep.parity.writers.lockstep_dump import TraceWriter
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
WITNESS = Path(__file__).parents[2] / "witnesses/llama/mistral_window"
FUSED = {"self_attn.scores", "self_attn.probs", "mlp.act_fn"}


def load(folder, backend, dtype="float32"):
    if backend == "reference":
        return reference.load(folder, dtype=dtype)
    return fast.load(folder, backend=backend, dtype=dtype)


@pytest.fixture(params=["reference", "mlx", "cpu"])
def backend(request):
    return request.param


@pytest.fixture(params=["plain", "packed"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_logits_have_the_same_bits_with_and_without_a_trace(tmp_path, folder, backend, dtype):
    model, path = load(folder, backend, dtype), tmp_path / "t"
    made = trace_run(model, TOKENS, path, globs=["logits"], decode=3)
    dump, cache, fed = open_dump(path), model.make_cache(), [TOKENS]
    for step, token in enumerate([*made["decoded"], None]):
        logits = to_numpy(model.forward(fed, cache=cache))
        traced = dump.read(f"step.{step}/logits" if step else "logits")
        assert (traced.dtype, traced.shape) == (logits.dtype, logits.shape)
        assert traced.tobytes() == logits.tobytes()
        assert token in (None, int(logits[0, -1].argmax()))
        fed = [[token]]
    assert dump.decoded == made["decoded"] and len(made["decoded"]) == 3


def test_a_trace_holds_every_tap_that_the_backend_computes(tmp_path, folder, backend):
    made = trace_run(load(folder, backend), TOKENS, tmp_path / "t", globs=None, decode=0)
    listed = {
        tap["name"]: tuple({"B": 1, "L": len(TOKENS)}.get(size, size) for size in tap["shape"])
        for tap in taps_of(open_checkpoint(folder))
    }
    if backend != "reference":
        listed = {n: s for n, s in listed.items() if ".".join(n.split(".")[3:]) not in FUSED}
    dump = open_dump(tmp_path / "t")
    assert dict(dump.shapes) == listed
    assert made["taps"] == len(listed)
    about = {"model": folder.name, "backend": backend, "dtype": "float32", "version": "1"}
    assert about.items() <= dump.about.items()
    assert dump.tokens == TOKENS


def test_a_trace_of_a_batch_holds_what_each_row_gives_alone(tmp_path, backend):
    """By law: a row does not depend on the others, nor on what fills it up."""
    model, rows = load(WITNESS, backend), [TOKENS, [7, 5]]
    made = trace_run(model, rows, tmp_path / "t", globs=None, decode=2)
    dump = open_dump(tmp_path / "t")
    assert (dump.batch, dump.padding, dump.tokens) == (rows, "right", None)
    assert dump.rows("batch_decoded") == made["batch_decoded"]
    for row, tokens in enumerate(rows):
        alone = trace_run(model, tokens, tmp_path / "a", globs=None, decode=2)
        assert alone["decoded"] == made["batch_decoded"][row]
        one = open_dump(tmp_path / "a")
        for name in ("model.layers.1", "logits", "step.2/model.layers.1.mlp.down_proj"):
            kept = slice(None) if "step" in name else slice(len(tokens))
            assert np.allclose(dump.read(name)[row, kept], one.read(name)[0], atol=1e-4)
    result = diff(tmp_path / "t", tmp_path / "t", model=reference.load(WITNESS))
    assert result.verdict == "parity" and result.compared > 50


def test_globs_choose_taps_and_a_wrong_one_is_told_before_the_run(tmp_path, plain):
    trace_run(load(plain, "cpu"), TOKENS, tmp_path / "t", globs=["*.mlp.up*", "logits"], decode=1)
    names = [*(f"model.layers.{n}.mlp.up_proj" for n in (0, 1)), "logits"]
    assert set(open_dump(tmp_path / "t").shapes) == {*names, *(f"step.1/{name}" for name in names)}
    for glob in ("*.mpl", "", "logits "):
        with pytest.raises(InputError, match="no tap is named"):
            check_globs(open_checkpoint(plain), ["logits", glob])
    check_globs(open_checkpoint(plain), None)


def test_steps_whose_header_nothing_would_read_are_refused_before_they_run(
    tmp_path, plain, monkeypatch
):
    """By hand: a header of 20 KB holds a prefill of this model, and no hundred steps of it."""
    monkeypatch.setattr(trace_file, "HEADER_LIMIT", trace_file.ABOUT + 20_000)
    model, passes = reference.load(plain), []
    forward = model.stages
    monkeypatch.setattr(model, "stages", lambda *a, **k: passes.append(1) or forward(*a, **k))
    with pytest.raises(InputError, match="would be over the"):
        trace_run(model, TOKENS, tmp_path / "t", globs=None, decode=100)
    assert passes == [1]
    assert list(tmp_path.iterdir()) == []
    trace_run(model, TOKENS, tmp_path / "t", globs=["logits"], decode=3)
    assert len(open_dump(tmp_path / "t").shapes) == 4


def test_what_a_backend_fuses_cannot_be_traced(tmp_path, plain):
    with pytest.raises(InputError, match="names nothing that cpu computes"):
        trace_run(load(plain, "cpu"), TOKENS, tmp_path / "t", globs=["*.scores"], decode=0)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_no_text_does_not_spoil_the_file(tmp_path, plain):
    folder = tmp_path / os.fsdecode(b"m\xff\n")
    folder.symlink_to(plain)
    trace_run(load(folder, "cpu"), TOKENS, tmp_path / "t", globs=["logits"], decode=0)
    assert open_dump(tmp_path / "t").about["model"] == r"m\udcff\x0a"


TAP = 1 << 22  # bytes


class Stream:
    """A model of many large taps, each made when it is asked for."""

    dtype, runs_on = "float32", "reference"
    checkpoint = open_checkpoint(WITNESS)

    def __init__(self, stages: int):
        self.config = SimpleNamespace(num_hidden_layers=stages - 2)

    def make_cache(self) -> None:
        pass

    def stages(self, tokens, *, cache, trace):
        for layer in range(self.config.num_hidden_layers + 2):
            trace(f"model.layers.{layer}", np.full(TAP // 4, layer, np.float32))
            yield f"model.layers.{layer}", None


@pytest.mark.parametrize("stages", [4, 40])
def test_memory_is_bounded_by_a_tap_however_many_there_are(tmp_path, stages):
    tracemalloc.start()
    trace_run(Stream(stages), TOKENS, tmp_path / "t", globs=None, decode=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "t").stat().st_size > stages * TAP
    assert peak < 3 * TAP


def test_caches_are_written_where_a_glob_names_them(lockstep, tmp_path):
    """By law: behind a step a cache holds the keys of all tokens so far, and `diff` agrees."""
    model, paths = WITNESS, []
    for backend in ("reference", "cpu", "mlx"):
        paths.append(tmp_path / f"{backend}.safetensors")
        said = lockstep("trace", model, "--tokens", "3,14,15", "--decode", 2, "--backend", backend,
                        "--taps", "*.cached_*,*.k_rope", "-o", paths[-1])  # fmt: skip
        assert said.code == 0
        dump = open_dump(paths[-1])
        layer = "model.layers.1.self_attn"
        keys = [dump.read(f"{step}{layer}.k_rope") for step in ("", "step.1/", "step.2/")]
        cached = dump.read(f"step.2/{layer}.cached_keys")
        np.testing.assert_array_equal(cached, np.concatenate(keys, axis=2))
        assert len(dump.shapes) == 3 * 2 * 3
    for other in paths[1:]:
        for more in ((), ("--model", model)):
            said = lockstep("diff", paths[0], other, *more)
            assert said.code == 0 and "18 taps compared" in said.out
    said = lockstep("trace", model, "--tokens", "3", "--taps", "model.layers.0.*", "-o", paths[0])
    assert said.code == 0 and not [one for one in open_dump(paths[0]).shapes if "cached" in one]


@pytest.mark.parametrize(
    "globs", [None, ["*.mlp.up*", "logits"], ["*.cached_*"]], ids=["all", "some", "caches"]
)
def test_no_tensor_is_written_twice(tmp_path, folder, backend, globs, monkeypatch):
    """By law: the header finds the room that was kept for it, over steps too."""
    monkeypatch.setattr(TraceWriter, "close", lambda self: 1 / 0)
    trace_run(load(folder, backend), TOKENS, tmp_path / "t", globs=globs, decode=12)
    assert open_dump(tmp_path / "t").shapes
