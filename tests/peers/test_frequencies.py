"""What noise allows frequencies of rope is what transformers makes of them. By witness."""

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lockstep.parity.noise import ways
from lockstep.reference import ops

UNIT = 2.0**-24  # relative, that a rounding to float32 may be off
FARTHER = 2.0  # times what the ways are off, that an engine may be
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def made_by_transformers(theta, dims, **options):
    parameters = {"rope_type": "llama3", "rope_theta": theta, **options}
    config = LlamaConfig(
        hidden_size=2 * dims,
        num_attention_heads=2,
        head_dim=dims,
        max_position_embeddings=2 * options["original_max_position_embeddings"],
        rope_parameters=parameters,
    )
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return frequencies.numpy().astype(np.float64)


def off(made, right):
    """Return how far frequencies are off, each relative to itself."""
    return float(np.sqrt(np.mean(np.square(made / right - 1))))


@pytest.mark.parametrize("original", [16, 24, 100, 512, 8192])
@pytest.mark.parametrize("dims", [24, 64, 80, 128])
@pytest.mark.parametrize("theta", [1e4, 5e5])
def test_blended_frequencies_are_no_farther_off(theta, dims, original):
    options = {"theta": theta, "dims": dims, **LLAMA3, "original_max_position_embeddings": original}
    right = ops.rope_frequencies_llama3(**options)
    allowed = max(
        off(way.rope_frequencies_llama3(**options), right) for way, _ in ways(np.dtype("float32"))
    )
    assert off(made_by_transformers(**options), right) <= FARTHER * allowed + UNIT
