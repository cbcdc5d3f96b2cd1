"""The sparse part of Gemma 4: what the router and the experts do. The whole: test_gemma4.py."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.witnesses.runners import ENGINES, Runner

FOLDER = Path(__file__).parents[2] / "witnesses" / "gemma4" / "sparse"
TOKENS = np.arange(30)[None] * 7 % 110
LAYER = "model.layers.1"


@pytest.fixture(scope="module", params=ENGINES)
def taps(request) -> dict[str, np.ndarray]:
    return Runner(request.param, FOLDER).taps(TOKENS)


def test_the_scale_of_an_expert_comes_after_the_weights_sum_to_one(taps):
    """By loop: softmax over the chosen logits, times `per_expert_scale`."""
    logits = taps[f"{LAYER}.router.proj"].astype(np.float64)
    scale = open_checkpoint(FOLDER).tensor(f"{LAYER}.router.per_expert_scale")
    for token in range(TOKENS.shape[1]):
        row = logits[0, token]
        chosen = np.argsort(-row)[:2]
        weights = np.exp(row[chosen]) / np.exp(row[chosen]).sum() * scale[chosen]
        expected = np.zeros_like(row)
        expected[chosen] = weights
        found = taps[f"{LAYER}.router.routing"][0, token]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_the_router_sees_the_stream(taps):
    """By loop: the stream after attention, at unit mean square."""
    stream = taps[f"{LAYER}.residual"].astype(np.float64)
    expected = stream / np.sqrt(np.mean(stream**2, axis=-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(taps[f"{LAYER}.router.norm"], expected, rtol=0, atol=5e-6)


def test_experts_stand_beside_the_mlp(taps):
    """By law: both are there in every layer, each with a norm before and after."""
    for layer in range(2):
        for name in (
            "mlp.down_proj",
            "experts",
            *(f"post_feedforward_layernorm_{n}" for n in (1, 2)),
        ):
            assert f"model.layers.{layer}.{name}" in taps
