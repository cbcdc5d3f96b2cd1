"""`lockstep bench` from the outside."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lockstep.parity.cli.bench_table import giga
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

GGUF = Path(__file__).parents[2] / "witnesses/gguf/qwen3_tied.gguf"
SHORT = ("--rounds", 1, "--prompt-tokens", 3, "--max-tokens", 1, "--backends", "cpu")


@long
def test_the_tables(lockstep, tied):
    said = lockstep("bench", tied, "--rounds", 1, "--prompt-tokens", 4, "--max-tokens", 2,
                    "--dtype", "float32")  # fmt: skip
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["cpu", "mlx", "reference"]
    assert lines[0].startswith("4 tokens of prompt  prefill") and "peak memory" in lines[0]
    assert lines[1].count("1.00x") == 2 and lines[1].endswith("float32  as stored")
    assert lines[5].split()[:5] == ["the", "machine's", "limits", "reads", "at"]
    assert [line.split()[0] for line in lines[6:9]] == ["cpu", "mlx", "reference"]
    assert "2 decoded after each prompt, 1 round in turn" in said.out
    assert "other tokens" not in said.out


def test_no_rate_of_products_is_nothing():
    shown = {1.04e11: "104", 9.96e9: "10", 2.34e9: "2.3", 4.56e7: "0.046"}
    assert {rate: giga(rate) for rate in shown} == {r: f"{s} GFLOP/s" for r, s in shown.items()}


@long
def test_the_json_of_two_prompts_and_the_picture(lockstep, tied, tmp_path):
    picture = tmp_path / "speed.svg"
    short = ("--rounds", 2, "--prompt-tokens", "5,3,5", "--max-tokens", 1, "--plot", picture)
    said = lockstep("bench", tied, "--backends", "reference,cpu:bfloat16", *short, "--json", "-")
    found = json.loads(said.out)
    assert (found["decoded"], found["rounds"], found["left_out"]) == (1, 2, [])
    assert [(one["name"], one["dtype"]) for one in found["engines"]] == [
        ("reference", "float32"), ("cpu:bfloat16", "bfloat16"),
    ]  # fmt: skip
    assert [run["prompt_tokens"] for run in found["runs"]] == [3, 5]
    for one in (engine for run in found["runs"] for engine in run["engines"]):
        rate, limits = one["decode_tokens_per_second"], one["limits"]
        assert 0 < rate["low"] <= rate["median"] <= rate["high"]
        assert one["peak_bytes"] > 10e6
        assert limits["decode_share"] == pytest.approx(
            rate["median"] / limits["decode_tokens_per_second"]
        )
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


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


def test_names_are_checked_before_anything_is_loaded(refuses, tied, monkeypatch):
    monkeypatch.setattr("lockstep.parity.bench.workers.Worker.load", lambda *a, **k: 1 / 0)
    refuses("'vllm', but should be one of", "bench", tied, "--against", "mlx-lm,vllm")


def test_where_the_picture_goes_is_looked_at_before_anything_is_loaded(
    refuses, tied, tmp_path, monkeypatch
):
    monkeypatch.setattr("lockstep.parity.bench.workers.Worker.load", lambda *a, **k: 1 / 0)
    refuses("its folder does not exist", "bench", tied, "--plot", tmp_path / "no" / "x.svg")
    refuses("is a folder", "bench", tied, "--plot", tmp_path)


def test_a_prompt_that_the_model_has_no_room_for(refuses, tied):
    refuses("but the model's context is", "bench", tied, "--prompt-tokens", "8,999999")


def test_a_peer_alone_that_cannot_run(refuses):
    core = "none is left to time: mlx-lm: is given folders, and"
    refuses(core, "bench", GGUF, "--backends", "mlx-lm")


@long
def test_peers_are_left_out_of_a_gguf_file(lockstep):
    said = lockstep("bench", GGUF, "--against", "mlx-lm,transformers", *SHORT)
    assert said.code == 0
    assert said.out.count("is given folders, and qwen3_tied.gguf is a GGUF file") == 2


def test_decoders_take_one_length_and_are_not_drawn(refuses, tied):
    decoder = ("--decoder", "autoregressive")
    refuses("is one number with --decoder", "bench", tied, *decoder, "--prompt-tokens", "3,4")
    refuses("goes without --decoder", "bench", tied, *decoder, "--plot", "x.svg")
    refuses("is no backend", "bench", tied, *decoder, "--backends", "cpu:float32")
