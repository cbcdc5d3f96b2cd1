"""Adapters on the command line and under the judge. By hand, on witnesses of mlx-lm and PEFT."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from lockstep import fast, reference
from lockstep.parity.check import check
from tests.sampled import sampled

ROOT = Path(__file__).parents[2]
ADAPTERS = ROOT / "tests/witnesses/adapters"
IDS = "3,1,4,1,5"
TABLES = ("peft_tables", "peft_saved", "peft_experts", "mlx_tables", "mlx_experts")


def pair(name: str) -> tuple[Path, Path]:
    """Return an adapter and its base."""
    with np.load(ADAPTERS / name / "expected.npz") as kept:
        return ADAPTERS / name, ROOT / str(kept["base"])


@sampled(3, "peft_tables-cpu")
@pytest.mark.parametrize("backend", ["mlx", "cpu"])
@pytest.mark.parametrize("name", ["peft_dora", "mlx_lora", *TABLES])
def test_check_runs_both_sides_with_it(name, backend, lockstep):
    folder, base = pair(name)
    said = lockstep("check", base, "--tokens", IDS, "--adapter", folder, "--backend", backend,
                    "--decode", 2)  # fmt: skip
    assert (said.code, said.out[:6]) == (0, "PARITY"), said


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("backend", ["mlx", "cpu"])
@pytest.mark.parametrize("name", ["peft_dora", "peft_patterns", "peft_tables", "peft_saved"])
def test_half_precision_is_no_divergence(name, backend, dtype, lockstep):
    folder, base = pair(name)
    said = lockstep("check", base, "--tokens", IDS, "--adapter", folder, "--backend", backend,
                    "--dtype", dtype)  # fmt: skip
    assert said.code == 0, said.out


@pytest.mark.parametrize("name", ["peft_dora", "mlx_lora"])
def test_a_wrong_scale_is_found_where_it_is(name):
    """By hand: one projection of the port divides by the rank again."""
    folder, base = pair(name)
    port = fast.load(base, folder, backend="cpu")
    path = "model.layers.1.self_attn.v_proj"
    wrong = port.adapters.modules[path]
    port.adapters.modules[path] = type(wrong)(wrong.a, wrong.b, wrong.scale / 2, wrong.magnitude)
    result = check(reference.load(base, folder), port, [[3, 1, 4]])
    assert result.first_divergence is not None and result.first_divergence.name == path
    assert [tap.name for tap in result.taps if tap.status == "diverged"] == [path]


@pytest.mark.parametrize(
    "name, path, blamed",
    [
        ("peft_tables", "model.embed_tokens", "model.embed_tokens"),
        ("peft_experts", "lm_head", "lm_head"),
        ("mlx_experts", "model.layers.1.mlp.experts.up_proj", "model.layers.1.mlp.experts"),
    ],
)
def test_a_wrong_scale_of_a_table_or_of_experts(name, path, blamed):
    """By hand: one of the modules of the port divides by the rank again."""
    folder, base = pair(name)
    port = fast.load(base, folder, backend="cpu")
    wrong = port.adapters.modules[path]
    port.adapters.modules[path] = type(wrong)(wrong.a, wrong.b, wrong.scale / 2, None)
    result = check(reference.load(base, folder), port, [[3, 1, 4]])
    assert result.first_divergence is not None and result.first_divergence.name == blamed


def test_trace_and_diff(lockstep, tmp_path):
    folder, base = pair("peft_patterns")
    for name, more in (("plain", ()), ("tuned", ("--adapter", folder))):
        said = lockstep("trace", base, "--tokens", IDS, "-o", tmp_path / name, *more)
        assert said.code == 0, said
    plain, tuned = (load_file(tmp_path / name) for name in ("plain", "tuned"))
    assert plain.keys() == tuned.keys()
    assert not np.array_equal(plain["logits"], tuned["logits"])
    files = tmp_path / "tuned", tmp_path / "tuned", "--model", base
    assert lockstep("diff", *files, "--adapter", folder).code == 0
    assert lockstep("diff", *files).code == 1


def test_generate(lockstep):
    folder, base = pair("mlx_trained")
    plain = ("generate", base, "--tokens", IDS, "--max-tokens", 8, "--ignore-eos", "--json", "-")
    kept = {
        backend: json.loads(lockstep(*plain, "--backend", backend, "--adapter", folder).out)
        for backend in ("reference", "mlx", "cpu")
    }
    tokens = [one["tokens"] for one in kept.values()]
    assert tokens[0] == tokens[1] == tokens[2] != json.loads(lockstep(*plain).out)["tokens"]


COMMANDS = {
    "trace": ("-o", "never.safetensors", "--tokens", IDS),
    "check": ("--tokens", IDS),
    "generate": ("--tokens", IDS),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_adapter_of_another_base(command, refuses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, base = ADAPTERS / "peft_gpt2", pair("mlx_lora")[1]
    core = "adapter changes no weights of the base"
    refuses(core, command, base, *COMMANDS[command], "--adapter", folder)
    assert not list(tmp_path.iterdir())


def test_diff_needs_a_model_to_adapt(refuses, lockstep, tmp_path):
    folder, base = pair("mlx_lora")
    lockstep("trace", base, "--tokens", IDS, "-o", tmp_path / "x")
    refuses("goes with --model", "diff", tmp_path / "x", tmp_path / "x", "--adapter", folder)
