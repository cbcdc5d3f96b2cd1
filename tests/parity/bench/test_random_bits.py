"""Checkpoints of random bits: that they are what they say, and products keep their size. By law."""

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.bench.random_bits import SPREAD
from lockstep.parity.bench.shape import main
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.ops import dequantize, linear

TOKENS = [[3, 14, 15, 92]]


def test_the_spread_of_codes():
    assert np.isclose(SPREAD, np.std(np.arange(16)))


def test_products_keep_the_size_of_what_they_take(tmp_path, capsys):
    """A matrix of 1,024 columns and a thousand rows: the mean square is sure to 5 %."""
    model = tmp_path / "model"
    assert main(["qwen3-0.6b", str(model), "--format", "random-4bit", "--layers", "1"]) == 0
    assert capsys.readouterr().out == f"{model}\n"
    checkpoint = open_checkpoint(model)
    assert checkpoint.warnings == []
    weight = checkpoint.tensor("model.layers.0.mlp.gate_proj.weight")
    x = np.random.default_rng(3).standard_normal((1, 8, 1024)).astype(np.float32)
    assert np.isclose(np.square(linear(x, weight, None)).mean(), 1, atol=0.1)
    values = dequantize(weight, rows=slice(None), dtype=np.dtype(np.float32))
    assert abs(values.mean()) < 0.01 * values.std()


def test_the_models_run(tmp_path):
    model = tmp_path / "model"
    assert main(["qwen3-0.6b", str(model), "--format", "random-4bit", "--layers", "1"]) == 0
    assert np.isfinite(reference.load(model).forward(TOKENS)).all()


def test_a_shape_that_is_written_in_random_bits_alone_says_so(tmp_path, capsys):
    assert main(["gemma4-26b-a4b", str(tmp_path / "model"), "--layers", "1"]) == 2
    assert "bfloat16, but this shape is written as random-4bit alone" in capsys.readouterr().err


@pytest.mark.parametrize("layers", [1, 7, 30])
def test_the_last_layer_is_a_full_one(layers):
    from lockstep.parity.bench.shape import resized

    kinds = resized("gemma4-26b-a4b", layers=layers)["layer_types"]
    assert len(kinds) == layers and kinds[-1] == "full_attention"
