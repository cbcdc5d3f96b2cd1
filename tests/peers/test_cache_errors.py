"""What each cache costs on every architecture, with heads that all of them can quantise. By loop.

Models of random weights in float32, and the truth is the reference without a cache.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.reference.stores.kinds import EXACT, QUANTISED, TURBO_BITS
from tests.witnesses import build, build_gemma4, build_gpt2, build_llama, build_qwen3_moe

WIDE = {"head_dim": 32}
GEMMA = WIDE | {"global_head_dim": 64}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: build_llama.random_model(1, build_llama.config("llama", "default", **WIDE)),
    "mistral": lambda: build_llama.random_model(
        1, build_llama.config("mistral", "default", **WIDE)
    ),
    "qwen2": lambda: build_llama.random_model(
        1, build_llama.config("qwen2", "default", **WIDE, use_sliding_window=False)
    ),
    "qwen3": lambda: build.random_model(1, **build.SMALL | WIDE),
    "qwen3_moe": lambda: build_qwen3_moe.random_model(1, **build_qwen3_moe.SMALL | WIDE),
    "gpt2": lambda: build_gpt2.random_model(1, **build_gpt2.SMALL | {"n_embd": 96}),
    "gemma4": lambda: build_gemma4.random_model(1, **build_gemma4.DENSE | GEMMA),
    "gemma4 experts": lambda: build_gemma4.random_model(1, **build_gemma4.SPARSE | GEMMA),
    "gemma4 small": lambda: build_gemma4.random_model(1, **build_gemma4.SMALL_BUILD | GEMMA),
}
# The error of the logits, root mean square over their standard deviation, at most.
LIMITS = {"int8": 0.05, "affine8": 0.05, "affine4": 0.6, "turbo4": 0.6, "turbo3": 0.9,
          "turbo2": 1.3, "turbo4-mse": 0.4, "turbo3-mse": 0.7, "turbo2-mse": 1.0}  # fmt: skip
TOKENS, CHUNKS = 24, [(0, 4), (4, 8), (8, 16), *((one, one + 1) for one in range(16, 24))]


@pytest.fixture(params=MODELS)
def folder(request, tmp_path) -> Path:
    build.settle()
    return build.save(MODELS[request.param](), tmp_path / "model", dtype="float32")


def off(model: Any, kind: str, tokens: np.ndarray, truth: np.ndarray) -> float:
    told = {"preallocated": {"room": TOKENS}} | {one: {"recent": 0} for one in TURBO_BITS}
    cache = model.make_cache(kind, **told.get(kind, {}))
    assert not cache.warnings  # no layer is kept as it is
    parts = [np.array(model.forward(tokens[:, a:b], cache=cache)) for a, b in CHUNKS]
    return float(np.sqrt(np.mean((np.concatenate(parts, axis=1) - truth) ** 2)) / truth.std())


def test_every_cache_is_within_its_error(folder):
    """On all three sides; those that lose nothing lose nothing, and the others something."""
    assert set(LIMITS) == {*QUANTISED}
    models = [
        reference.load(folder), fast.load(folder, backend="cpu"), fast.load(folder, backend="mlx")
    ]  # fmt: skip
    size = models[0].config.vocab_size
    tokens = np.random.default_rng(2).integers(1, size, (1, TOKENS))
    truth = models[0].forward(tokens)
    for model in models:
        for kind in EXACT:
            assert off(model, kind, tokens, truth) < 1e-5, kind
        found = {kind: off(model, kind, tokens, truth) for kind in LIMITS}
        assert all(1e-4 < found[kind] < limit for kind, limit in LIMITS.items()), found
