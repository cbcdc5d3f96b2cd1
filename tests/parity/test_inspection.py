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
from lockstep.fast.kernels import again
from lockstep.parity.inspection import PROMPT, inspection
from lockstep.reference.checkpoint.architectures.gemma4_text import tensors as gemma4_tensors
from lockstep.reference.checkpoint.architectures.qwen3 import tensors as expected_tensors
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.parity.conftest import MODELS
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

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


@pytest.fixture(
    scope="module", params=[40_000, 8192, 400], ids=["long-head", "wide-head", "small-head"]
)
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


@pytest.fixture(scope="module")
def layered(tmp_path_factory) -> Path:
    """A small Gemma 4 whose table for the layers is larger than all else, in bfloat16."""
    source = MODELS.parent / "gemma4/effective"
    settings = json.loads((source / "config.json").read_text())
    settings |= {"vocab_size": 6000, "vocab_size_per_layer_input": 6000, "hidden_size": 128}
    settings |= {"hidden_size_per_layer_input": 256, "intermediate_size": 256}
    folder = tmp_path_factory.mktemp("layered")
    (folder / "config.json").write_text(json.dumps(settings))
    old = open_checkpoint(source).config
    sizes = {key: value for key, value in settings.items() if key.endswith(("_size", "_input"))}
    shapes = gemma4_tensors(replace(old, **sizes))
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


def hold_memory(folder: Path) -> None:
    """Compare what is told of a run's memory with what it takes, in every package."""
    told = inspection(open_checkpoint(folder))["memory"]
    run(fast.load(folder, backend="cpu"))  # what compiles its kernels takes memory of its own
    again._idle.clear()  # and rooms that lie idle since would be asked for no more
    measured = {
        "reference": peak(lambda: run(reference.load(folder))),
        "cpu": peak(lambda: run(fast.load(folder, backend="cpu"))),
        "mlx": mlx_peak(lambda: run(fast.load(folder, backend="mlx"))),
    }
    for backend, found in measured.items():
        estimate = told["fast" if backend == "mlx" else backend]
        assert 1 / FACTOR < found / estimate < FACTOR, (backend, found, estimate)


@long
def test_memory_is_what_a_run_takes(medium):
    hold_memory(medium)


@long
def test_of_a_table_that_is_looked_up_the_reference_reads_some_rows(layered):
    hold_memory(layered)


def test_the_cache_takes_what_is_told_for_a_token(medium):
    model = reference.load(medium)
    cache = model.make_cache()
    model.forward(np.ones((1, 9), int), cache=cache)
    assert cache.nbytes == 9 * inspection(model.checkpoint)["memory"]["cache_per_token"]
