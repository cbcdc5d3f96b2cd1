"""`lockstep bench` from the outside."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

GGUF = Path(__file__).parents[2] / "witnesses/gguf/qwen3_tied.gguf"


def test_the_table(lockstep, tied):
    said = lockstep("bench", tied, "--rounds", 1, "--prompt-tokens", 4, "--max-tokens", 2)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["cpu", "mlx", "reference"]
    assert lines[1].count("1.00x") == 2
    assert "4 tokens of prompt, 2 decoded, float32, 1 rounds in turn" in said.out
    assert "other tokens" not in said.out


def test_the_json(lockstep, tied):
    short = ("--rounds", 2, "--prompt-tokens", 3, "--max-tokens", 1)
    said = lockstep("bench", tied, "--backends", "reference,cpu", *short, "--json", "-")
    found = json.loads(said.out)
    assert (found["prompt_tokens"], found["decoded"], found["rounds"]) == (3, 1, 2)
    assert [one["name"] for one in found["engines"]] == ["reference", "cpu"]
    for one in found["engines"]:
        rate = one["decode_tokens_per_second"]
        assert 0 < rate["low"] <= rate["median"] <= rate["high"]
        assert one["same_tokens"] is True


@pytest.mark.parametrize(
    ("core", "arguments"),
    [
        ("--rounds: 0, but should be at least 1", ("--rounds", "0")),
        ("--prompt-tokens: 0", ("--prompt-tokens", "0")),
        ("--max-tokens: 0", ("--max-tokens", "0")),
        ("'vllm', but should be one of", ("--against", "vllm")),
        ("--backends: names no engine", ("--backends", "")),
        ("'fastest', but should be one of", ("--backends", "fastest")),
    ],
)
def test_what_is_refused(refuses, tied, core, arguments):
    refuses(core, "bench", tied, *arguments)


def test_a_folder_that_llama_cpp_cannot_be_given(lockstep, packed, monkeypatch):
    """It is left out in one line, and the others run."""
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace())
    short = ("--rounds", 1, "--prompt-tokens", 3, "--max-tokens", 1, "--backends", "cpu")
    said = lockstep("bench", packed, "--against", "llama.cpp", *short)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-1].startswith("left out: llama.cpp: reads GGUF, and affine_mixed")


def test_names_are_checked_before_anything_is_loaded(refuses, tied, monkeypatch):
    monkeypatch.setattr("lockstep.parity.bench.engines.engine_named", lambda *a, **k: 1 / 0)
    refuses("'vllm', but should be one of", "bench", tied, "--against", "mlx-lm,vllm")


def test_a_peer_alone_that_cannot_run(refuses):
    core = "none is left to time: mlx-lm: is given folders, and"
    refuses(core, "bench", GGUF, "--backends", "mlx-lm")


def test_peers_are_left_out_of_a_gguf_file(lockstep):
    short = ("--rounds", 1, "--prompt-tokens", 3, "--max-tokens", 1, "--backends", "cpu")
    said = lockstep("bench", GGUF, "--against", "mlx-lm,transformers", *short)
    assert said.code == 0
    assert said.out.count("is given folders, and qwen3_tied.gguf is a GGUF file") == 2
