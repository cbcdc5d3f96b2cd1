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


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", ""])
def test_modules_of_a_multimodal_model(prefix, peft):
    """transformers' wrapper, mlx-lm's, and none; patterns are asked with the file's own name."""
    peft.tensors = {
        name.replace("base_model.model.model.", f"base_model.model.{prefix}"): value
        for name, value in peft.tensors.items()
    }
    peft.config["alpha_pattern"] = {f"^{prefix}layers.1.self_attn.q_proj$": 10}
    found = peft.open().modules
    assert found.keys() == {QUERY, DOWN}
    assert found[QUERY].scale == 10 / 2


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
    "modules to save": ({"modules_to_save": ["lm_head"]}, "holds no weight of a module, but ada"),
    "a text of modules": ({"modules_to_save": "lm_head"}, "must be a list of names"),
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


@pytest.mark.parametrize("name", ["lora_B.bias", "bias", "lora_embedding_C"])
def test_refused_tensors(name, peft, refuses):
    peft.tensors[f"base_model.model.{QUERY}.{name}"] = draw(128)
    refuses(peft.open, "tensors that are no part of a LoRA or DoRA projection: 'base_model.")


def test_a_tensor_without_the_prefix(peft, refuses):
    peft.tensors[f"{QUERY}.{A}"] = draw(2, 64)
    refuses(peft.open, "tensors that are no part")


def table(peft, path: str, rank: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Put an adapter of an embedding into the file: 160 tokens of width 64."""
    rows = peft.base.stored("model.embed_tokens.weight").shape[0]
    one, other = draw(rank, rows), draw(64, rank)
    peft.tensors[f"base_model.model.{path}.lora_embedding_A"] = one
    peft.tensors[f"base_model.model.{path}.lora_embedding_B"] = other
    return one, other


def test_a_table_is_transposed_and_its_factor_is_divided_once(peft):
    """6 / 2, and neither 6 nor 6 / 2 / 2."""
    one, other = table(peft, "model.embed_tokens")
    found = peft.open().modules
    np.testing.assert_array_equal(found["model.embed_tokens"].b, one.T)
    np.testing.assert_array_equal(found["model.embed_tokens"].a, other.T)
    assert found["model.embed_tokens"].scale == 3.0 and "lm_head" not in found


def test_a_table_whose_matrices_are_exchanged(peft, refuses):
    one, _ = table(peft, "model.embed_tokens")
    peft.tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = one.T
    refuses(peft.open, "of 64")


def test_a_saved_module_is_its_user_s_alone(peft):
    head = draw(*peft.base.stored("model.embed_tokens.weight").shape)
    peft.tensors["base_model.model.lm_head.weight"] = head
    peft.config["modules_to_save"] = ["lm_head"]
    assert list(peft.open().weights) == ["lm_head.weight"]


def test_a_table_that_was_saved_along_is_both(peft):
    """PEFT saves the base of an adapted table; with a tied head it is one tensor in memory."""
    table(peft, "model.embed_tokens")
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    peft.tensors[name] = draw(*peft.base.stored("model.embed_tokens.weight").shape)
    tied = not peft.base.has("lm_head.weight")
    users = ["model.embed_tokens.weight"] + ["lm_head.weight"] * tied
    assert list(peft.open().weights) == users


SAVED = {
    "of another size": ("model.embed_tokens", (7, 64), "but the base has"),
    "of a projection": (QUERY, (128, 64), "only embeddings, heads and norms of the base are"),
    "of nobody": ("score", (2, 64), "only embeddings, heads and norms of the base are"),
}


@pytest.mark.parametrize("case", SAVED)
def test_refused_whole_weights(case, peft, refuses):
    path, shape, core = SAVED[case]
    peft.tensors[f"base_model.model.{path}.weight"] = draw(*shape)
    peft.config["modules_to_save"] = [path.rpartition(".")[2]]
    refuses(peft.open, core)


def test_a_saved_weight_that_is_not_finite(peft, refuses):
    value = draw(*peft.base.stored("model.embed_tokens.weight").shape)
    value[0, 0] = np.nan
    peft.tensors["base_model.model.lm_head.weight"] = value
    peft.config["modules_to_save"] = ["lm_head"]
    refuses(peft.open, "holds values that are not finite")


def test_dora_of_a_table(peft, refuses):
    table(peft, "model.embed_tokens")
    peft.config["use_dora"] = True
    refuses(peft.open, "is not supported: projections alone have rows with lengths")
