"""What `inspect` says, against a count by hand and against memory that was measured."""

import json
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from lockstep import fast, reference
from lockstep.parity.inspection import PROMPT, inspection
from lockstep.reference.checkpoint.architectures.qwen3 import tensors as expected_tensors
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.parity.conftest import MODELS

# The estimate may be off by this much, either way. It leaves Python and small arrays out.
FACTOR = 1.5


def counted(config: dict) -> int:
    """Count the parameters of a Qwen3 from its config, as one would with a pencil."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    attention = width * queries + 2 * width * keys + queries * width + 2 * config["head_dim"]
    biases = (queries + 2 * keys + width) if config["attention_bias"] else 0
    layer = attention + biases + 3 * width * inner + 2 * width
    tables = 1 if config["tie_word_embeddings"] else 2
    return config["num_hidden_layers"] * layer + tables * config["vocab_size"] * width + width


@pytest.mark.parametrize("name", ["plain", "tied", "packed", "demo"])
def test_parameters_are_those_of_a_count_by_hand(name, request):
    folder = request.getfixturevalue(name)
    found = inspection(open_checkpoint(folder))
    assert found["parameters"] == counted(found["config"])
    assert json.dumps(found)


def test_bytes_are_those_of_the_files(plain, packed):
    for folder in (plain, packed):
        found = inspection(open_checkpoint(folder))
        on_disk = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        assert 0 < on_disk - found["memory"]["weights"] < 20_000  # the headers
        assert sum(group["nbytes"] for group in found["formats"].values()) == sum(
            tensor["nbytes"] for tensor in found["tensors"]
        )
    assert found["bits_per_weight"] == 8 * found["memory"]["weights"] / found["parameters"]


def test_formats_are_told_by_tensor_and_by_kind(packed):
    found = inspection(open_checkpoint(packed))
    formats = {tensor["name"]: tensor["format"] for tensor in found["tensors"]}
    assert formats["model.norm.weight"] == "BF16"
    assert formats["lm_head.weight"] == "affine 8-bit, groups of 64, BF16"
    modules = found["formats"]["BF16"]["modules"]
    assert modules == {
        "input_layernorm": 2, "q_norm": 2, "k_norm": 2, "post_attention_layernorm": 2, "norm": 1,
    }  # fmt: skip


@pytest.fixture(scope="module", params=[8192, 400], ids=["wide-head", "small-head"])
def medium(request, tmp_path_factory) -> Path:
    """A random model of several million parameters in bfloat16."""
    checkpoint = open_checkpoint(MODELS / "untied_float32")
    config = asdict(checkpoint.config) | {
        "vocab_size": request.param, "hidden_size": 384, "intermediate_size": 1024, "head_dim": 64,
        "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 3,
        "max_position_embeddings": 512, "layer_types": ["full_attention"] * 3,
    }  # fmt: skip
    settings = json.loads((checkpoint.path / "config.json").read_text())
    settings |= {
        key: value for key, value in config.items() if key in settings and key != "rope_scaling"
    }
    folder = tmp_path_factory.mktemp("medium")
    (folder / "config.json").write_text(json.dumps(settings))
    shapes = expected_tensors(replace(checkpoint.config, **config))
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors")
    return folder


def run(model) -> None:
    cache = model.make_cache()
    logits = model.forward(np.ones((1, PROMPT), int), cache=cache)
    if hasattr(model, "backend"):
        model.backend.evaluate(logits)


def peak(call) -> int:
    tracemalloc.start()
    call()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def mlx_peak(call) -> int:
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    call()
    return mx.get_peak_memory() - before


def test_memory_is_what_a_run_takes(medium):
    told = inspection(open_checkpoint(medium))["memory"]
    measured = {
        "reference": peak(lambda: run(reference.load(medium))),
        "cpu": peak(lambda: run(fast.load(medium, backend="cpu"))),
        "mlx": mlx_peak(lambda: run(fast.load(medium, backend="mlx"))),
    }
    for backend, found in measured.items():
        estimate = told["reference" if backend == "reference" else "fast"]
        assert 1 / FACTOR < found / estimate < FACTOR, (backend, found, estimate)


def test_the_cache_takes_what_is_told_for_a_token(medium):
    model = reference.load(medium)
    cache = model.make_cache()
    model.forward(np.ones((1, 9), int), cache=cache)
    held = sum(array.nbytes for array in (*cache.keys, *cache.values))
    assert held == 9 * inspection(model.checkpoint)["memory"]["cache_per_token"]
