"""PEFT's adapters: what they mean, and what is refused. By hand."""

import math
import time

import numpy as np
import pytest

from tests.reference.checkpoint.adapters.conftest import DOWN, QUERY, draw

A, B = "lora_A.weight", "lora_B.weight"


def test_alpha_is_divided_by_the_rank_once(peft):
    """6 / 2, and neither 6 nor 6 / 2 / 2."""
    assert [adapter.scale for adapter in peft.open().modules.values()] == [3.0, 3.0]


def test_rslora_divides_by_the_root(peft):
    peft.config["use_rslora"] = True
    assert peft.open().modules[QUERY].scale == 6 / math.sqrt(2)


def test_patterns(peft):
    """Of the end of a path, the first that fits; the rank of a module divides its own alpha."""
    peft.config["rank_pattern"] = {"down_proj": 4, r"layers\.\d+\.mlp\.down_proj": 9}
    peft.config["alpha_pattern"] = {"^model.layers.1.self_attn.q_proj$": 10, "proj": 77}
    peft.tensors |= {
        f"base_model.model.{DOWN}.{A}": draw(4, 96),
        f"base_model.model.{DOWN}.{B}": draw(64, 4),
    }
    found = peft.open().modules
    assert (found[QUERY].scale, found[DOWN].scale) == (10 / 2, 6 / 4)


def test_matrices_stay_as_they_are(peft):
    adapter = peft.open().modules[QUERY]
    np.testing.assert_array_equal(adapter.a, peft.tensors[f"base_model.model.{QUERY}.{A}"])
    np.testing.assert_array_equal(adapter.b, peft.tensors[f"base_model.model.{QUERY}.{B}"])


@pytest.mark.parametrize("ending", ["", ".weight"])
def test_dora(ending, peft):
    peft.config["use_dora"] = True
    for path, size in ((QUERY, 128), (DOWN, 64)):
        name = f"base_model.model.{path}.lora_magnitude_vector{ending}"
        peft.tensors[name] = draw(size)
    assert peft.open().modules[DOWN].magnitude.shape == (64,)


def test_what_a_config_names_is_not_looked_at(peft, monkeypatch):
    """L02: the library of `auto_mapping` is not imported, no address is opened."""
    monkeypatch.setattr("webbrowser.open", lambda *args: pytest.fail("imported"))
    peft.open()


def test_a_pattern_costs_no_time(peft, refuses):
    """L03: this one would take Python's matcher years."""
    peft.config["rank_pattern"] = {"(a+)+b": 3}
    began = time.perf_counter()
    refuses(peft.open, "rank_pattern has the pattern '(a+)+b': names, digits")
    assert time.perf_counter() - began < 5


BAD = {
    "another method": ({"peft_type": "IA3"}, "field 'peft_type' must be 'LORA'"),
    "r 0": ({"r": 0}, "field 'r' must be a positive integer"),
    "r -2": ({"r": -2}, "field 'r' must be a positive integer"),
    "r true": ({"r": True}, "field 'r' must be a positive integer"),
    "r 2.0": ({"r": 2.0}, "field 'r' must be a positive integer"),
    "r too large": ({"r": 2**31}, "field 'r' must be a positive integer"),
    "another r": ({"r": 4}, "but should have [4, 96]"),
    "alpha 0": ({"lora_alpha": 0}, "field 'lora_alpha' must be a number"),
    "alpha below 0": ({"lora_alpha": -1}, "field 'lora_alpha' must be a number"),
    "alpha too large": ({"lora_alpha": 1e30}, "field 'lora_alpha' must be a number"),
    "alpha a text": ({"lora_alpha": "16"}, "field 'lora_alpha' must be a number"),
    "no alpha": ({"lora_alpha": None}, "field 'lora_alpha' must be a number"),
    "biases": ({"bias": "all"}, "field 'bias' is not supported"),
    "modules to save": ({"modules_to_save": ["lm_head"]}, "'modules_to_save' is not supported"),
    "parameters": ({"target_parameters": ["x"]}, "'target_parameters' is not supported"),
    "a bias of its own": ({"lora_bias": True}, "field 'lora_bias' is not supported"),
    "layers twice": ({"layer_replication": [[0, 2]]}, "'layer_replication' is not supported"),
    "a changed base": ({"init_lora_weights": "pissa"}, "changes the base's weights"),
    "patterns in a list": ({"alpha_pattern": ["q"]}, "must be an object of patterns"),
    "a rank in a pattern": ({"rank_pattern": {"q_proj": 0}}, "'rank_pattern.q_proj' must be"),
    "a rank of a pattern": ({"rank_pattern": {"q_proj": 3}}, "but should have [3, 64]"),
    "an unknown key": ({"twist": 3}, "unknown config key 'twist'"),
    "dora without lengths": ({"use_dora": True}, "DoRA needs both matrices and a magnitude"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused_configs(case, peft, refuses):
    edit, core = BAD[case]
    peft.config |= edit
    refuses(peft.open, core)


@pytest.mark.parametrize(
    "name", ["lora_B.bias", "weight", "lora_embedding_A", "lora_A.default.weight"]
)
def test_refused_tensors(name, peft, refuses):
    peft.tensors[f"base_model.model.{QUERY}.{name}"] = draw(128)
    refuses(peft.open, "tensors that are no part of a LoRA or DoRA projection: 'base_model.")


def test_a_tensor_without_the_prefix(peft, refuses):
    peft.tensors[f"{QUERY}.{A}"] = draw(2, 64)
    refuses(peft.open, "tensors that are no part")
