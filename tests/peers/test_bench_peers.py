"""The peers in the benchmark are given, and do, the same work. By witness."""

import subprocess
import sys

import pytest

from lockstep.parity.bench import llama_cpp as bench_llama_cpp
from lockstep.parity.bench.engines import PEERS, engine_named
from lockstep.parity.bench.measure import prompt_of
from tests.witnesses.conftest import MODELS

GGUF = MODELS.parent / "gguf"
SHORT = ("--backends", "cpu", "--rounds", "1", "--prompt-tokens", "4", "--max-tokens", "2")
PROMPT = prompt_of(20, 90)


def generated(name, path):
    engine = engine_named(name, path, ignore_config=())
    made = [engine.prefill(PROMPT)]
    for _ in range(6):
        made.append(engine.step(made[-1]))
    return made


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_makes_the_tokens_that_we_make(name):
    folder = MODELS / "tied_bfloat16"
    assert generated(name, folder) == generated("cpu", folder)


def test_mlx_lm_on_packed_weights():
    folder = MODELS / "affine_4_64"
    assert generated("mlx-lm", folder) == generated("mlx", folder)


def test_llama_cpp_runs_a_gguf_file_itself():
    path = GGUF / "qwen3_tied.gguf"
    assert generated("llama.cpp", path) == generated("cpu", path)


def test_llama_cpp_grows_while_it_generates(monkeypatch):
    """Its context is too small again and again; the tokens stay the same, in the next turn too."""
    folder = MODELS / "untied_float32"
    expected = generated("cpu", folder)
    monkeypatch.setattr(bench_llama_cpp, "SMALLEST", 1)
    engine = engine_named("llama.cpp", folder, ignore_config=())
    rooms = [engine.room]
    for _ in range(2):
        engine.prefill(PROMPT[:3])
        made = [engine.prefill(PROMPT)]
        for _ in range(6):
            made.append(engine.step(made[-1]))
        assert made == expected
        rooms.append(engine.room)
    assert rooms[0] < len(PROMPT) <= rooms[1] == rooms[2]


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (GGUF / "qwen3_tied.gguf", "llama.cpp  "),
        (MODELS / "untied_float32", "llama.cpp  "),
        (MODELS / "affine_4_64", "left out: llama.cpp: reads GGUF, and affine_4_64 has no exact"),
        (GGUF / "gpt2_turned.gguf", "left out: llama.cpp: cannot run gpt2_turned.gguf: "),
    ],
    ids=["file", "folder", "packed", "without a tokenizer"],
)
def test_llama_cpp_is_heard_in_the_table_alone(model, line):
    """It writes to standard error by itself, past Python: so from a process of its own."""
    command = (sys.executable, "-m", "lockstep.parity.cli", "bench", str(model), *SHORT)
    said = subprocess.run([*command, "--against", "llama.cpp"], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    assert [one for one in said.stdout.splitlines() if one.startswith(line)]
