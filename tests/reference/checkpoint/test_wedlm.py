"""The configs and tensors of both builds of WeDLM, as published. By hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.reference.checkpoint.architectures.qwen3 import Qwen3Config
from lockstep.reference.checkpoint.config import ParsedConfig, read_config
from lockstep.reference.checkpoint.llama_family import LlamaConfig

Refuses = Callable[[Callable[[], object], str], str]
GONE = object()
FULL, SLIDES = "full_attention", "sliding_attention"

# The keys of the published files, with small numbers.
BUILD_8B: dict[str, Any] = {
    "architectures": ["WeDLMForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_wedlm.WeDLMConfig"},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "mask_token_id": None,
    "max_position_embeddings": 128,
    "max_window_layers": 2,
    "model_type": "wedlm",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 2,
    "qk_norm": True,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 48,
}
BUILD_7B = BUILD_8B | {"attention_bias": True, "head_dim": GONE, "qk_norm": False}
BUILDS = {"8B": BUILD_8B, "7B": BUILD_7B}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., ParsedConfig]:
    """Return a function that reads a config with some keys changed or GONE."""

    def call(name: str, **changes: Any) -> ParsedConfig:
        kept = {k: v for k, v in (BUILDS[name] | changes).items() if v is not GONE}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(kept), encoding="utf-8")
        return read_config(path, ignore=())

    return call


Read = Callable[..., ParsedConfig]


def names(parsed: ParsedConfig) -> set[str]:
    found = parsed.architecture.tensors(parsed.config)
    return {name.removeprefix("model.layers.0.self_attn.") for name in found if ".0.self_" in name}


def test_the_8b_build_is_a_qwen3(read: Read) -> None:
    parsed = read("8B")
    assert isinstance(parsed.config, Qwen3Config) and not parsed.config.attention_bias
    assert parsed.architecture.model_of(parsed.config) == "qwen3"
    assert parsed.warnings == [] and parsed.config.head_dim == 32
    weights = {f"{part}.weight" for part in ("q_proj", "k_proj", "v_proj", "o_proj")}
    assert names(parsed) == weights | {"q_norm.weight", "k_norm.weight"}


def test_the_7b_build_is_a_qwen2(read: Read) -> None:
    """Biases on queries, keys and values alone; heads share the width where none is given."""
    parsed = read("7B")
    assert isinstance(parsed.config, LlamaConfig) and parsed.config.head_dim == 16
    assert parsed.architecture.model_of(parsed.config) == "llama"
    assert parsed.warnings == [] and parsed.config.rope_theta == 1e6
    weights = {f"{part}.weight" for part in ("q_proj", "k_proj", "v_proj", "o_proj")}
    assert names(parsed) == weights | {"q_proj.bias", "k_proj.bias", "v_proj.bias"}


def test_an_absent_norm_is_none(read: Read) -> None:
    """As in the published code of the model."""
    assert read("7B", qk_norm=GONE).config == read("7B").config


@pytest.mark.parametrize("build", BUILDS)
def test_the_token_of_masks_changes_no_forward_pass(build: str, read: Read) -> None:
    parsed = read(build, mask_token_id=7)
    assert parsed.config == read(build).config and parsed.warnings == []


@pytest.mark.parametrize("build", BUILDS)
def test_which_layers_slide(build: str, read: Read) -> None:
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    config = read(build, **window).config
    assert (config.sliding_window, config.layer_types) == (8, (FULL, SLIDES))
    assert read(build, sliding_window=8).config.sliding_window is None


@pytest.mark.parametrize("build", BUILDS)
def test_tensors_that_files_carry_and_nobody_uses(build: str, read: Read) -> None:
    for tied in (True, False):
        parsed = read(build, tie_word_embeddings=tied)
        buffer = "model.layers.1.self_attn.rotary_emb.inv_freq"
        assert parsed.architecture.tolerated(buffer, parsed.config)
        assert bool(parsed.architecture.tolerated("lm_head.weight", parsed.config)) is tied


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("8B", {"qk_norm": GONE}, "field 'qk_norm' must be true, the contrary of attention_bias"),
    ("8B", {"qk_norm": False}, "must be true, the contrary of attention_bias (found false)"),
    ("7B", {"qk_norm": True}, "must be false, the contrary of attention_bias (found true)"),
    ("7B", {"qk_norm": 0}, "field 'qk_norm' must be true or false"),
    ("8B", {"attention_bias": GONE}, "field 'attention_bias' must be true or false"),
    ("8B", {"head_dim": GONE}, "field 'head_dim' must be"),
    ("7B", {"rope_theta": GONE}, "field 'rope_theta' must be a number"),
    ("8B", {"architectures": ["Qwen3ForCausalLM"]}, "WeDLMForCausalLM is read"),
    ("7B", {"block_size": 32}, "unknown config key 'block_size'"),
]


@pytest.mark.parametrize(("name", "changes", "core"), REFUSED)
def test_refused(
    name: str, changes: dict[str, Any], core: str, read: Read, refuses: Refuses
) -> None:
    refuses(lambda: read(name, **changes), core)
