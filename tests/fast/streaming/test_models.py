"""Models whose experts stay on the disk. Truth: the same model with all of them in memory."""

import json
import shutil
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lockstep import fast
from lockstep.parity.bench.random_bits import write_random_bits
from lockstep.reference.checkpoint.errors import InputError
from tests.sampled import sampled

ROOT = Path(__file__).parents[2] / "witnesses"
DEMO = Path(__file__).parents[3] / "parity/demo/gemma4"
PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]
# Each way in which experts lie in files.
MODELS = {
    "separate": ROOT / "qwen3_moe/separate",
    "fused": ROOT / "qwen3_moe/fused",
    "packed": ROOT / "qwen3_moe/packed",
    "gemma4": ROOT / "gemma4/sparse",
    "gguf": ROOT / "gguf/gemma4_26b.gguf",
}


def least(path, backend):
    """Return the smallest budget that is taken, in bytes: as the refusal says it."""
    with pytest.raises(InputError) as refused:
        fast.load(path, backend=backend, expert_budget=1)
    return int(str(refused.value).split("at least ")[1].split()[0])


def logits(model, steps=8):
    """Return the logits of a prompt and of greedy steps after it, one below the other."""
    cache, tokens, found = model.make_cache(), [PROMPT], []
    for _ in range(1 + steps):
        made = np.array(model.forward(tokens, cache=cache))[0]
        found.append(made)
        tokens = [[int(made[-1].argmax())]]
    return np.concatenate(found)


@sampled(6, "gemma4-1000-cpu")
@pytest.mark.parametrize("backend", ["cpu", "mlx"])
@pytest.mark.parametrize("times", [1, 2, 1000])
@pytest.mark.parametrize("name", MODELS)
def test_a_budget_changes_no_logit(name, times, backend):
    path = MODELS[name]
    budget = times * least(path, backend)
    streamed = fast.load(path, backend=backend, expert_budget=budget)
    whole, found = logits(fast.load(path, backend=backend)), logits(streamed)
    assert np.abs(found - whole).max() <= (0 if backend == "cpu" else 1e-6 * whole.std())
    counts = streamed.streamed.report()
    assert 0 < counts["held_most"] <= budget
    assert counts["visits"] >= 20 and counts["bytes_read"] > 0
    again = counts["bytes_read"] > counts["experts"]
    assert again == (times == 1) or times == 2, "a small budget reads experts more than once"


@pytest.mark.parametrize("backend", ["cpu", "mlx"])
def test_an_adapter_of_experts_is_applied(backend):
    base, adapter = ROOT / "qwen3_moe/packed", ROOT / "adapters/mlx_experts"
    budget = least(base, backend)
    whole = logits(fast.load(base, adapter, backend=backend))
    found = logits(fast.load(base, adapter, backend=backend, expert_budget=budget))
    assert np.abs(found - whole).max() <= (0 if backend == "cpu" else 1e-6 * whole.std())
    assert np.abs(whole - logits(fast.load(base, backend=backend))).max() > 0.01 * whole.std()


def test_a_model_without_experts_is_refused():
    with pytest.raises(InputError, match="has no experts that an expert budget could hold"):
        fast.load(ROOT / "llama/mistral_window", backend="cpu", expert_budget=10**9)


def test_too_small_a_budget_is_refused_with_what_would_do():
    """By hand: an expert of 128 x 64 weights, three times, at 4 bits and two bfloat16 a group."""
    expert = 3 * (64 * 128 // 2 + 2 * 2 * 64 * 128 // 64)
    with pytest.raises(InputError) as refused:
        fast.load(DEMO, backend="cpu", expert_budget=3 * expert - 1)
    assert f"is {3 * expert - 1} bytes, but should be at least {3 * expert} " in str(refused.value)
    assert "(2 experts of a layer, and the next one)" in str(refused.value)
    assert fast.load(DEMO, backend="cpu", expert_budget=3 * expert).streamed is not None


def test_a_file_that_changes_under_the_run_is_said(tmp_path):
    """What is read in the background fails in the foreground, in one line."""
    folder = Path(shutil.copytree(DEMO, tmp_path / "model"))
    model = fast.load(folder, backend="cpu", expert_budget=100_000)
    model.forward([PROMPT])
    (folder / "model.safetensors").write_bytes((DEMO / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"model\.safetensors: .*changed"):
        model.forward([[7, 77, 177, 277, 377]])


def test_the_command_says_how_they_came(tmp_path, capsys):
    from lockstep.parity.cli import main

    words = ["generate", str(DEMO), "--tokens", "3,14,15", "--max-tokens", "5", "--backend", "cpu"]
    result = tmp_path / "result.json"
    assert main([*words, "--expert-budget", "100kB", "--json", str(result)]) == 0
    said, found = capsys.readouterr().out, json.loads(result.read_text())
    assert f"of {found['experts']['visits']} visited experts were there" in said
    assert found["experts"]["budget"] == 100_000
    assert main([*words, "--json", str(result)]) == 0
    assert json.loads(result.read_text())["tokens"] == found["tokens"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--expert-budget", "1MB", "--backend", "reference"], "--expert-budget: goes with "),
        (["--expert-budget", "2"], "'2' is not a size such as 500MB or 2.5GB"),
        (["--expert-budget", "1kB"], "expert budget is 1000 bytes, but should be at least "),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words, line, capsys):
    from lockstep.parity.cli import main

    assert main(["generate", str(DEMO), "--tokens", "3", *words]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1


@pytest.fixture
def three_sparse_layers(tmp_path):
    """A Qwen3-MoE of random bits; the committed ones have a dense layer among two."""
    config = json.loads((MODELS["separate"] / "config.json").read_text())
    sizes = {"hidden_size": 64, "head_dim": 64, "moe_intermediate_size": 64}
    config |= sizes | {"num_hidden_layers": 3, "mlp_only_layers": [], "intermediate_size": 64}
    write_random_bits(tmp_path, config, done=lambda name: None)
    return tmp_path


@pytest.mark.parametrize("name", ["qwen3_moe", "gemma4"])
def test_what_is_sure_is_said_before_what_is_guessed(name, three_sparse_layers, monkeypatch):
    """By the calls: a layer's own experts first, then what the next one may choose."""
    path = three_sparse_layers if name == "qwen3_moe" else MODELS[name]
    model, calls = fast.load(path, backend="cpu", expert_budget=10**9), []
    for call in ("visit", "foresee"):
        heard = partial(lambda call, path, _: calls.append((call, path)), call)
        monkeypatch.setattr(model.streamed, call, heard)
    model.forward([PROMPT])
    layers = [path for call, path in calls if call == "visit"]
    guessed = [path for call, path in calls if call == "foresee"]
    assert len(layers) >= 2 and guessed == layers[1:]
    for layer, following in pairwise(layers):
        assert calls.index(("visit", layer)) < calls.index(("foresee", following))


def test_an_expert_that_is_larger_than_the_first_is_refused(tmp_path):
    """A budget counts what the first one takes: the file is written anew with that in bfloat16."""
    import ml_dtypes
    from safetensors.numpy import load_file, save_file

    folder = Path(shutil.copytree(MODELS["separate"], tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if ".experts." in name:
            kind = ml_dtypes.bfloat16 if ".experts.0." in name else np.float32
            tensors[name] = tensors[name].astype(kind)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    model = fast.load(folder, backend="mlx", expert_budget=10**9)
    with pytest.raises(InputError, match=r"expert \d takes \d+ bytes in memory, but the first one"):
        model.forward([PROMPT])
