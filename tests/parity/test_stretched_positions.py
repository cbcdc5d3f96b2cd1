"""`check` on Llama's family: right ports pass, and the bugs of known engines are found. By law."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.check import check
from lockstep.parity.inspection import inspection
from lockstep.parity.noise import half
from lockstep.parity.replaying.taps import taps_of
from lockstep.reference import ops
from lockstep.reference.checkpoint.rope_scaling import RopeScaling
from tests.ops_backends import BACKENDS
from tests.sampled import sampled

FOLDER = Path(__file__).parents[1] / "witnesses" / "llama"
NAMES = sorted(path.name for path in FOLDER.iterdir())
TOKENS = np.arange(30)[None] * 7 % 60
MLX = BACKENDS[1]
LAYER = "model.layers.0.self_attn"


@sampled(6, "mistral_window-bfloat16-cpu")
@pytest.mark.parametrize("backend", ["mlx", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_right_ports_pass(name, dtype, backend):
    port = fast.load(FOLDER / name, backend=backend, dtype=dtype)
    result = check(reference.load(FOLDER / name, dtype=dtype), port, TOKENS, decode=2)
    assert result.first_divergence is None, result.first_divergence
    assert result.compared > 40


def test_the_noise_knows_who_stretches_first():
    """By witness: MLX in float16 on a CPU, which mlx-lm gives queries that it multiplied before."""
    x = np.random.default_rng(0).normal(size=(1, 2, 9, 64)).astype(np.float16)
    positions, frequencies = np.arange(9)[None], 1e4 ** -(np.arange(32) / 32)
    first = x * np.float16(1.1386)
    expected = MLX.rope(first, positions, frequencies, factor=1.0).astype(np.float64)
    found = half.MLX_CPU["rope"](x, positions, frequencies, factor=1.1386)
    assert found.dtype == np.float16
    assert np.abs(found - expected).max() <= 2**-8  # one unit of the last place of the largest
    exact = ops.rope(x, positions, frequencies, factor=1.1386).astype(np.float64)
    assert 1 / 3 < np.abs(found - exact).std() / np.abs(expected - exact).std() < 3


def lost(scaling: RopeScaling) -> RopeScaling:
    """Find no scaling: the keys were looked for under another name."""
    return RopeScaling()


def without_factor(scaling: RopeScaling) -> RopeScaling:
    return replace(scaling, attention_factor=1.0)


def long_for_all(scaling: RopeScaling) -> RopeScaling:
    return replace(scaling, short_factor=scaling.long_factor)


BUGS = [
    ("biased_llama3", lost),
    ("llama_dynamic", lost),
    ("qwen2_yarn", lost),
    ("qwen2_yarn", without_factor),
    ("llama_longrope", without_factor),
    ("llama_longrope", long_for_all),
]


@pytest.mark.parametrize(("name", "bug"), BUGS)
def test_bugs_of_known_engines_are_found(name, bug):
    port = fast.load(FOLDER / name, backend="cpu")
    port.config = replace(port.config, rope_scaling=bug(port.config.rope_scaling))
    tokens = TOKENS[:, :12] if bug is long_for_all else TOKENS
    result = check(reference.load(FOLDER / name), port, tokens)
    assert result.first_divergence.name == f"{LAYER}.q_rope"


def test_a_window_that_is_ignored_is_found():
    port = fast.load(FOLDER / "mistral_window", backend="cpu")
    port.config = replace(port.config, layer_types=("full_attention",) * 2)
    result = check(reference.load(FOLDER / "mistral_window"), port, TOKENS)
    assert result.first_divergence.name == f"{LAYER}.context"


@pytest.mark.parametrize("name", NAMES)
def test_taps_are_those_of_a_run(name):
    model, found = reference.load(FOLDER / name), {}
    model.forward(TOKENS, trace=found.__setitem__)
    sizes = {"B": 1, "L": TOKENS.shape[1]}
    listed = {
        tap["name"]: tuple(sizes.get(size, size) for size in tap["shape"])
        for tap in taps_of(model.checkpoint)
    }
    assert listed == {tap: value.shape for tap, value in found.items()}


@pytest.mark.parametrize(
    ("name", "context"), [("llama_dynamic", 48), ("qwen2_yarn", 64), ("llama_longrope", 64)]
)
def test_the_context_counts_the_stretching(name, context):
    """By hand: 16 positions that grow threefold; 16 stretched four times, announced as 64."""
    assert inspection(reference.load(FOLDER / name).checkpoint)["context"] == context
