"""mlx-lm's adapters: what they mean, and what is refused. By hand."""

import numpy as np
import pytest

from tests.reference.checkpoint.adapters.conftest import DOWN, QUERY, draw


def test_the_scale_is_the_whole_factor(mlx):
    """It is not alpha: divided by rank 2 it would be 10."""
    found = mlx.open()
    assert [adapter.scale for adapter in found.modules.values()] == [20.0, 20.0]


def test_both_matrices_are_turned(mlx):
    adapter = mlx.open().modules[QUERY]
    assert adapter.magnitude is None
    np.testing.assert_array_equal(adapter.a, mlx.tensors[f"{QUERY}.lora_a"].T)
    np.testing.assert_array_equal(adapter.b, mlx.tensors[f"{QUERY}.lora_b"].T)


def test_dora(mlx):
    mlx.config["fine_tune_type"] = "dora"
    mlx.tensors |= {f"{QUERY}.m": draw(128), f"{DOWN}.m": draw(64)}
    lengths = mlx.open().modules[DOWN].magnitude
    np.testing.assert_array_equal(lengths, mlx.tensors[f"{DOWN}.m"])


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_other_prefixes_of_one_module(prefix, mlx):
    """Files have been seen that leave `model.` out, or put a wrapper before it."""
    bare = {name.removeprefix("model."): value for name, value in mlx.tensors.items()}
    prefix = f"{prefix}model." if prefix else ""
    mlx.tensors = {prefix + name: value for name, value in bare.items()}
    assert mlx.open().modules.keys() == {QUERY, DOWN}


BAD = {
    "whole weights": ({"fine_tune_type": "full"}, "field 'fine_tune_type' must be 'lora' or"),
    "a type of another kind": ({"fine_tune_type": ["lora"]}, "field 'fine_tune_type' must be"),
    "no parameters": ({"lora_parameters": None}, "field 'lora_parameters' must be an object"),
    "old flat keys": ({"lora_layers": 4}, "unknown config key 'lora_layers'"),
    "no scale": ({"lora_parameters": {"rank": 2}}, "field 'lora_parameters.scale' must be"),
    "no rank": ({"lora_parameters": {"scale": 1}}, "field 'lora_parameters.rank' must be"),
    "alpha": (
        {"lora_parameters": {"rank": 2, "scale": 1, "alpha": 16}},
        "unknown config key 'lora_parameters.alpha'",
    ),
    "rank 0": ({"lora_parameters": {"rank": 0, "scale": 1}}, "positive integer from 1"),
    "rank true": ({"lora_parameters": {"rank": True, "scale": 1}}, "positive integer from 1"),
    "rank 2.0": ({"lora_parameters": {"rank": 2.0, "scale": 1}}, "positive integer from 1"),
    "rank 2**31": ({"lora_parameters": {"rank": 2**31, "scale": 1}}, "from 1 to 65536"),
    "another rank": ({"lora_parameters": {"rank": 3, "scale": 1}}, "but should have [96, 3]"),
    "scale 0": ({"lora_parameters": {"rank": 2, "scale": 0}}, "must be a number from 1e-06"),
    "scale too large": ({"lora_parameters": {"rank": 2, "scale": 1e9}}, "to 1e+06"),
    "an unknown key": ({"twist": 3}, "unknown config key 'twist'"),
    "dora without lengths": ({"fine_tune_type": "dora"}, "DoRA needs both matrices and a magn"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused_configs(case, mlx, refuses):
    edit, core = BAD[case]
    mlx.config |= edit
    refuses(mlx.open, core)


def test_an_unknown_key_may_be_waived(mlx):
    mlx.config["twist"] = 3
    found = mlx.open(ignore_config=["twist"])
    assert found.warnings == ("config keys ignored on request: 'twist'",)


def test_lengths_that_no_lora_has(mlx, refuses):
    mlx.tensors[f"{QUERY}.m"] = draw(128)
    refuses(mlx.open, "is not whole: LoRA needs two matrices")


def test_a_table_is_not_transposed_and_its_factor_is_not_divided(mlx):
    """lora_a has a row for each token; scale 20 at rank 2 is 20. A tied head has it too."""
    rows = mlx.base.stored("model.embed_tokens.weight").shape[0]
    mlx.tensors |= {
        "model.embed_tokens.lora_a": draw(rows, 2),
        "model.embed_tokens.lora_b": draw(2, 64),
    }
    found = mlx.open().modules
    one = found["model.embed_tokens"]
    np.testing.assert_array_equal(one.b, mlx.tensors["model.embed_tokens.lora_a"])
    np.testing.assert_array_equal(one.a, mlx.tensors["model.embed_tokens.lora_b"])
    assert one.scale == 20.0
    assert (found.get("lm_head") is one) == (not mlx.base.has("lm_head.weight"))
