"""The commands on a model of tiny floats. By law, on the witness that has every mode."""

from pathlib import Path

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.check import check
from lockstep.parity.inspection import inspection
from lockstep.parity.reports.terminal import report
from tests.sampled import sampled

long = sampled(1)  # of the proofs below that take seconds each

FOLDER = Path(__file__).parents[1] / "witnesses" / "models" / "minifloats_mixed"
TOKENS = np.arange(20)[None] * 7 % 90


@long
@pytest.mark.parametrize("backend", ["mlx", "cpu"])
def test_check_says_parity(backend):
    port = fast.load(FOLDER, backend=backend)
    result = check(reference.load(FOLDER), port, TOKENS, decode=2)
    assert result.first_divergence is None and result.compared > 40
    assert report(result).startswith("PARITY")


@long
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_check_says_parity_in_half_precision(dtype):
    """Not on MLX: on a CPU it sums packed weights in half precision."""
    port = fast.load(FOLDER, backend="cpu", dtype=dtype)
    result = check(reference.load(FOLDER, dtype=dtype), port, TOKENS)
    assert result.first_divergence is None


@pytest.mark.parametrize("backend", ["mlx", "cpu"])
def test_a_wrong_scale_is_found_where_it_is(backend):
    """By law: one power of two too many in one group of one matrix."""
    port, name = fast.load(FOLDER, backend=backend), "model.layers.0.self_attn.o_proj"
    scales = port.weights[f"{name}.weight"].scales
    scales[3:4, 1:2] = scales[3:4, 1:2] + 3
    result = check(reference.load(FOLDER), port, TOKENS)
    assert result.first_divergence is not None
    assert result.first_divergence.name == name


def test_inspection_names_the_modes():
    found = inspection(reference.load(FOLDER).checkpoint)
    formats = {tensor["format"] for tensor in found["tensors"]}
    assert {
        "mxfp4 4-bit, groups of 32, U8",
        "mxfp8 8-bit, groups of 32, U8",
        "nvfp4 4-bit, groups of 16, U8",
        "affine 6-bit, groups of 32, BF16",
    } < formats
