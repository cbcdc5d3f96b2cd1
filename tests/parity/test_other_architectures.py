"""The commands do not take every model for a Qwen3. By law, on the witnesses of the others."""

from pathlib import Path

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.check import check
from lockstep.parity.generating.generation import own_dtype
from lockstep.parity.inspection import inspection
from lockstep.parity.naming.grouping import kind
from lockstep.parity.naming.names import is_tap, tap_named
from lockstep.parity.replaying.taps import taps_of
from lockstep.parity.reports.terminal import report
from tests.sampled import sampled

WITNESSES = Path(__file__).parents[1] / "witnesses"
FOLDERS = [
    WITNESSES / name
    for name in (
        *("gpt2/original", "gpt2/variant", "gpt2/packed"),
        *("qwen3_moe/separate", "qwen3_moe/fused", "qwen3_moe/packed"),
        *("gemma4/dense", "gemma4/sparse", "gemma4/effective"),
    )
]
PLAIN = [f"gpt2/{name}" for name in ("original", "variant")]
PLAIN += [f"qwen3_moe/{name}" for name in ("separate", "fused")]
PLAIN += [f"gemma4/{name}" for name in ("dense", "effective")]
TOKENS = np.arange(30)[None] * 7 % 100


@pytest.fixture(params=FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def folder(request) -> Path:
    return request.param


@sampled(4, "qwen3_moe-fused-cpu")
@pytest.mark.parametrize("backend", ["mlx", "cpu"])
def test_check_says_parity(folder, backend):
    """By law: a backend that is right shows nothing beyond the noise, in later steps as well."""
    port = fast.load(folder, backend=backend)
    result = check(reference.load(folder), port, TOKENS, decode=2)
    assert result.first_divergence is None
    assert result.compared > 40
    assert report(result).startswith("PARITY")


@sampled(0)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_check_says_parity_in_half_precision(dtype):
    """By law: of plain weights; MLX on a CPU sums packed ones in half precision."""
    for name in PLAIN:
        for backend in ("mlx", "cpu"):
            port = fast.load(WITNESSES / name, backend=backend, dtype=dtype)
            result = check(reference.load(WITNESSES / name, dtype=dtype), port, TOKENS)
            assert result.first_divergence is None, (name, backend, result.first_divergence)


FAULTS = {
    "gpt2/original": ("transformer.h.1.mlp.c_fc.bias", "transformer.h.1.mlp.c_fc"),
    "gpt2/variant": ("transformer.h.0.ln_2.bias", "transformer.h.0.ln_2"),
    "gpt2/packed": ("transformer.wpe.scales", "transformer.wpe"),
    "qwen3_moe/separate": (
        "model.layers.1.mlp.experts.up_proj.weight",
        "model.layers.1.mlp.experts",
    ),
    "qwen3_moe/fused": ("model.layers.1.mlp.gate.weight", "model.layers.1.mlp.gate"),
    "gemma4/dense": ("model.layers.1.layer_scalar", "model.layers.1"),
    "gemma4/sparse": ("model.layers.1.router.per_expert_scale", "model.layers.1.router.routing"),
    "gemma4/effective": (
        "model.per_layer_projection_norm.weight",
        "model.per_layer_projection_norm",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_check_says_where_a_fault_is(name):
    """By hand: one tensor of the port is off by a thousandth, or a hundredth of half precision."""
    tensor, tap = FAULTS[name]
    port = fast.load(WITNESSES / name, backend="cpu")
    if tensor.endswith(".scales"):
        port.weights[tensor.replace("scales", "weight")].scales[...] *= 1.01
    else:
        port.weights[tensor] = port.weights[tensor] * np.float32(1.001)
    result = check(reference.load(WITNESSES / name), port, TOKENS)
    assert result.first_divergence.name == tap


def test_taps_are_those_of_a_run(folder):
    """By law: named and shaped without computing as they are when computed."""
    model = reference.load(folder)
    found: dict[str, np.ndarray] = {}
    model.forward(TOKENS, trace=found.__setitem__)
    listed = {tap["name"]: tap["shape"] for tap in taps_of(model.checkpoint)}
    sizes = {"B": 1, "L": TOKENS.shape[1]}
    assert list(listed) == list(found)
    for name, shape in listed.items():
        assert tuple(sizes.get(size, size) for size in shape) == found[name].shape, name


def test_taps_are_recognised(folder):
    """By law: every tap's name means itself, and counts as one."""
    for tap in taps_of(reference.load(folder).checkpoint):
        assert tap_named(tap["name"]) == tap["name"]
        assert is_tap(tap["name"]), tap["name"]


@pytest.mark.parametrize("name, tap", [
    ("transformer.h.0.attn", "transformer.h.0.attn.c_proj"),
    ("h.3.mlp.c_fc", "transformer.h.3.mlp.c_fc"),
    ("model.h.1.mlp", "transformer.h.1.mlp.c_proj"),
    ("model.wte", "transformer.wte"),
    ("ln_f", "transformer.ln_f"),
    ("transformer", "transformer.ln_f"),
    ("step.2/h.1.attn.resid_dropout", "step.2/transformer.h.1.attn.c_proj"),
    ("module.transformer.h.2.mlp.dropout", "transformer.h.2.mlp.c_proj"),
    ("model", "model.norm"),
])  # fmt: skip
def test_names_of_gpt2(name, tap):
    """By hand: of hooks on the model without its head, and of mlx-lm."""
    assert tap_named(name) == tap


def test_layers_are_grouped_in_a_report():
    """By hand."""
    assert kind("step.3/transformer.h.11.attn.c_attn") == "transformer.h.*.attn.c_attn"
    assert kind("model.layers.4.mlp.routing") == "model.layers.*.mlp.routing"


def test_inspection(folder):
    """By law: what is common to all is there under one name; parameters are counted from shapes."""
    checkpoint = reference.load(folder).checkpoint
    found = inspection(checkpoint)
    config = found["config"]
    assert config["hidden_size"] == checkpoint.config.hidden_size
    assert config["num_hidden_layers"] == checkpoint.config.num_hidden_layers
    assert found["architecture"].startswith(folder.parent.name)
    assert found["parameters"] == sum(
        np.prod(checkpoint.stored(name).shape) for name in checkpoint.names
    )
    assert found["memory"]["reference"] > 0


def test_the_dtype_of_a_run_is_found_without_a_name_of_qwen():
    """By hand: on MLX the file's own, where the machine has a GPU; here float32 if packed."""
    stored = {"gpt2/original": "float16", "gpt2/variant": "bfloat16", "qwen3_moe/fused": "float16"}
    for name, dtype in stored.items():
        checkpoint = reference.load(WITNESSES / name).checkpoint
        assert own_dtype(checkpoint, "mlx") == dtype
        assert own_dtype(checkpoint, "cpu") == "float32"


HEADS = "4 heads of 12 over 2 key/value heads"
SAID = {
    "gemma4/sparse": (f"{HEADS}; of 16 over 1 in full", "6 in a sparse layer, 2 for each"),
    "gemma4/effective": (f"{HEADS}; of 16 over 2 in full",),
    "qwen3_moe/fused": (HEADS, "6 in a sparse layer, 3 for each"),
    "gpt2/original": ("3 heads of 16 over 3 key/value heads\n",),
}


@pytest.mark.parametrize("name", SAID)
def test_inspect_tells_wide_heads_and_experts(name, lockstep):
    """By hand, from the configs."""
    out = lockstep("inspect", WITNESSES / name).out
    assert all(line in out for line in SAID[name])
    assert ("experts" in out.splitlines()[1]) == (len(SAID[name]) == 2)
