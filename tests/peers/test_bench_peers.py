"""The peers in the benchmark are given, and do, the same work. By witness."""

import subprocess
import sys

import numpy as np
import pytest

from lockstep.parity.bench import llama_cpp as bench_llama_cpp
from lockstep.parity.bench import shape
from lockstep.parity.bench.choice import THEIRS
from lockstep.parity.bench.engines import loaded
from lockstep.parity.bench.gguf_copy import as_gguf, in_float32
from lockstep.parity.bench.measure import prompt_of
from lockstep.parity.bench.unpacked_copy import as_unpacked
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.parity.bench.test_shape import TINY
from tests.witnesses.conftest import MODELS

GGUF = MODELS.parent / "gguf"
SHORT = ("--backends", "cpu", "--rounds", "1", "--prompt-tokens", "4", "--max-tokens", "2")
PROMPT = prompt_of(20, 90)


def generated(name, path, dtype="float32"):
    engine = loaded(name, path, dtype, shown=path.name, ignore_config=())
    first = engine.prefill(PROMPT)
    return [first, *engine.decode(first, 6)]


@pytest.mark.parametrize("name", THEIRS)
def test_a_peer_makes_the_tokens_that_we_make(name):
    folder = MODELS / "tied_bfloat16"
    expected = generated("cpu", folder)
    if name != "llama.cpp":
        assert generated(name, folder) == expected
        return
    with as_gguf(folder, "F32", ignore_config=()) as (copy, _):
        assert generated(name, copy) == expected


@pytest.mark.parametrize("name", ["mlx-lm", "transformers"])
def test_a_peer_computes_in_what_it_is_told(name):
    folder = MODELS / "tied_bfloat16"
    for dtype in ("float32", "bfloat16"):
        model = loaded(name, folder, dtype, shown="it", ignore_config=()).model
        norm = model.model.norm.weight
        assert str(norm.dtype).endswith(dtype)


def test_mlx_lm_on_packed_weights():
    folder = MODELS / "affine_4_64"
    assert generated("mlx-lm", folder) == generated("mlx", folder)


@pytest.mark.parametrize("folder", ["affine_4_64", "affine_mixed", "minifloats_mixed"])
def test_transformers_on_packed_weights(folder):
    """By law: unpacked to float32 it is the same model."""
    with as_unpacked(MODELS / folder, "float32", ignore_config=()) as (copy, said):
        assert said == "unpacked to float32"
        assert generated("transformers", copy) == generated("cpu", MODELS / folder)
    assert not copy.exists()


def test_a_folder_that_is_not_packed_is_given_as_it_is():
    with as_unpacked(MODELS / "tied_bfloat16", "float32", ignore_config=()) as (copy, said):
        assert (copy, said) == (MODELS / "tied_bfloat16", "as stored")


def test_llama_cpp_runs_a_gguf_file_itself():
    path = GGUF / "qwen3_tied.gguf"
    assert generated("llama.cpp", path) == generated("cpu", path)


def test_llama_cpp_grows_while_it_generates(monkeypatch):
    """Its context is too small again and again; the tokens stay the same, in the next turn too."""
    folder = MODELS / "untied_float32"
    expected = generated("cpu", folder)
    monkeypatch.setattr(bench_llama_cpp, "SMALLEST", 1)
    with as_gguf(folder, ignore_config=()) as (copy, _):
        engine = loaded("llama.cpp", copy, "its own", shown="it", ignore_config=())
    rooms = [engine.room]
    for _ in range(2):
        engine.prefill(PROMPT[:3])
        first = engine.prefill(PROMPT)
        assert [first, *engine.decode(first, 6)] == expected
        rooms.append(engine.room)
    assert rooms[0] < len(PROMPT) <= rooms[1] == rooms[2]


@pytest.mark.parametrize("form", ["gguf-f32", "gguf-bf16", "gguf-q4_0", "gguf-q8_0", "gguf-q4_k"])
def test_a_shape_in_gguf_is_the_same_model(form, tmp_path):
    """By law: what is no K type is the gguf package's rounding of the numbers of bfloat16; a K
    type is off by about half a step of 4 bits."""
    config = TINY | {"hidden_size": 256, "intermediate_size": 256}  # a block of Q4_K is 256 wide
    path = shape.write_shape(config, tmp_path / form, form)
    name = "model.layers.0.mlp.up_proj.weight"
    truth = in_float32(open_checkpoint(
        shape.write_shape(config, tmp_path / "dense", "bfloat16")).tensor(name))  # fmt: skip
    off = in_float32(open_checkpoint(path).tensor(name)) - truth
    worst = {"gguf-f32": 0, "gguf-bf16": 0, "gguf-q8_0": 0.01}.get(form, 0.15)
    assert np.sqrt(np.mean(off**2)) <= worst * truth.std()
    assert generated("llama.cpp", path)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (GGUF / "qwen3_tied.gguf", "llama.cpp  "),
        (MODELS / "untied_float32", "llama.cpp  "),
        (MODELS / "affine_4_64", "llama.cpp  "),
        (MODELS / "sliding_bfloat16", "left out: llama.cpp: reads GGUF, and sliding_bfloat16 has"),
        (GGUF / "gpt2_turned.gguf", "left out: llama.cpp: cannot run gpt2_turned.gguf: "),
    ],
    ids=["file", "folder", "packed", "window", "without a tokenizer"],
)
def test_llama_cpp_is_heard_in_the_table_alone(model, line):
    """It writes to standard error by itself, past Python: so from a process of its own."""
    command = (sys.executable, "-m", "lockstep.parity.cli", "bench", str(model), *SHORT)
    said = subprocess.run([*command, "--against", "llama.cpp"], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    assert [one for one in said.stdout.splitlines() if one.startswith(line)]
