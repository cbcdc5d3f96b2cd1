"""The configs and tensors of Llama, Mistral and Qwen2, as published and as saved. By hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.reference.checkpoint.config import ParsedConfig, read_config
from lockstep.reference.checkpoint.llama_family import ATTENTION, MLP, LlamaConfig
from lockstep.reference.checkpoint.rope_scaling import RopeScaling

Refuses = Callable[[Callable[[], object], str], str]
GONE = object()
FULL, SLIDES = "full_attention", "sliding_attention"

# The keys of published files, with small numbers.
LLAMA_1: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": 48,
}
LLAMA_3 = LLAMA_1 | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eos_token_id": [2, 3],
    "head_dim": 32,
    "mlp_bias": False,
    "num_key_value_heads": 2,
    "pretraining_tp": 1,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
}
MISTRAL = LLAMA_1 | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "num_key_value_heads": 2,
    "rope_theta": 10000.0,
    "sliding_window": 8,
}
QWEN2 = LLAMA_1 | {
    "architectures": ["Qwen2ForCausalLM"],
    "max_window_layers": 1,
    "model_type": "qwen2",
    "num_key_value_heads": 2,
    "rope_theta": 1000000.0,
    "sliding_window": 32,
    "use_sliding_window": False,
}
FILES = {"llama 1": LLAMA_1, "llama 3": LLAMA_3, "mistral": MISTRAL, "qwen2": QWEN2}
PLAIN = LlamaConfig(
    vocab_size=48,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-06,
    rope_theta=10_000.0,
    rope_scaling=RopeScaling(),
    tie_word_embeddings=False,
    biased=(),
    max_position_embeddings=128,
    sliding_window=None,
    layer_types=(FULL, FULL),
)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., ParsedConfig]:
    """Return a function that reads a config with some keys changed or GONE."""

    def call(name: str, **changes: Any) -> ParsedConfig:
        kept = {k: v for k, v in (FILES[name] | changes).items() if v is not GONE}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(kept), encoding="utf-8")
        return read_config(path, ignore=())

    return call


Read = Callable[..., ParsedConfig]


def like(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**{**vars(PLAIN), **changes})


def test_llama_1(read: Read) -> None:
    """No theta, no key/value heads, no head width: each has one meaning in every engine."""
    parsed = read("llama 1")
    assert parsed.config == like(num_key_value_heads=4)
    assert (parsed.architecture.model, parsed.warnings) == ("llama", [])


def test_llama_3(read: Read) -> None:
    scaling = RopeScaling("llama3", 8.0, 32, low_freq_factor=1.0, high_freq_factor=4.0)
    parsed = read("llama 3")
    assert parsed.config == like(head_dim=32, rope_theta=500_000.0, rope_scaling=scaling)
    assert parsed.warnings == []


@pytest.mark.parametrize("name", FILES)
def test_an_absent_head_is_untied(name: str, read: Read) -> None:
    """As in transformers; mlx-lm would tie."""
    assert read(name, tie_word_embeddings=GONE).config.tie_word_embeddings is False
    assert read(name, tie_word_embeddings=True).config.tie_word_embeddings is True


@pytest.mark.parametrize("name", FILES)
def test_null_is_absent(name: str, read: Read) -> None:
    changes = {"head_dim": None, "num_key_value_heads": None, "rope_scaling": None}
    config = read(name, **changes).config
    assert (config.head_dim, config.num_key_value_heads) == (16, 4)
    assert config.rope_scaling == RopeScaling()


def test_biases(read: Read) -> None:
    assert read("llama 3", attention_bias=True).config.biased == ATTENTION
    assert read("llama 3", mlp_bias=True).config.biased == MLP
    assert read("llama 3", attention_bias=True, mlp_bias=True).config.biased == ATTENTION + MLP
    assert read("qwen2").config.biased == ATTENTION[:3]
    assert read("mistral", attention_bias=False).config.biased == ()


WINDOWS: list[tuple[str, dict[str, Any], int | None, tuple[str, ...]]] = [
    ("mistral", {}, 8, (SLIDES, SLIDES)),
    ("mistral", {"sliding_window": None}, None, (FULL, FULL)),
    ("mistral", {"layer_types": [FULL, SLIDES]}, 8, (FULL, SLIDES)),
    ("mistral", {"layer_types": [FULL, FULL]}, None, (FULL, FULL)),
    ("mistral", {"layer_types": None}, 8, (SLIDES, SLIDES)),
    ("qwen2", {}, None, (FULL, FULL)),
    ("qwen2", {"use_sliding_window": True}, 32, (FULL, SLIDES)),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 28}, None, (FULL, FULL)),
    ("llama 3", {"sliding_window": None}, None, (FULL, FULL)),
]


@pytest.mark.parametrize(("name", "changes", "window", "kinds"), WINDOWS)
def test_which_layers_slide(
    name: str, changes: dict[str, Any], window: int | None, kinds: tuple[str, ...], read: Read
) -> None:
    config = read(name, **changes).config
    assert (config.sliding_window, config.layer_types) == (window, kinds)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama 3", {"head_dim": 33}, "head_dim=33 is odd: rotary embedding needs pairs"),
    ("llama 1", {"hidden_size": 36}, "head_dim=9 is odd: rotary embedding needs pairs"),
    ("llama 1", {"hidden_size": 66}, "hidden_size=66 is no multiple of num_attention_heads=4, and"),
    ("llama 3", {"num_key_value_heads": 3}, "num_attention_heads=4 is not a multiple of num_key"),
    ("llama 3", {"sliding_window": 8}, "unknown config key 'sliding_window'"),
    ("llama 3", {"layer_types": [FULL, FULL]}, "unknown config key 'layer_types'"),
    ("llama 3", {"hidden_act": "gelu"}, "field 'hidden_act' must be 'silu'"),
    ("llama 3", {"mlp_bias": 1}, "field 'mlp_bias' must be true or false"),
    ("llama 3", {"rms_norm_eps": GONE}, "field 'rms_norm_eps' must be a number"),
    ("llama 3", {"max_position_embeddings": GONE}, "field 'max_position_embeddings' must be"),
    ("llama 1", {"partial_rotary_factor": 0.5}, "unknown config key 'partial_rotary_factor'"),
    ("mistral", {"sliding_window": GONE}, "field 'sliding_window' must be an integer or null"),
    ("mistral", {"sliding_window": 0}, "field 'sliding_window' must be a positive integer"),
    ("mistral", {"rope_theta": GONE}, "field 'rope_theta' must be a number, here or in rope_par"),
    ("mistral", {"attention_bias": True}, "unknown config key 'attention_bias'"),
    (
        "mistral",
        {"sliding_window": None, "layer_types": [FULL, SLIDES]},
        "field 'layer_types' has sliding layers, but there is no sliding window",
    ),
    ("qwen2", {"rope_theta": GONE}, "field 'rope_theta' must be a number, here or in rope_parame"),
    ("qwen2", {"attention_bias": True}, "unknown config key 'attention_bias'"),
    ("qwen2", {"architectures": ["LlamaForCausalLM"]}, "Qwen2ForCausalLM is read"),
]


@pytest.mark.parametrize(("name", "changes", "core"), REFUSED)
def test_refused(
    name: str, changes: dict[str, Any], core: str, read: Read, refuses: Refuses
) -> None:
    refuses(lambda: read(name, **changes), core)


def test_tensors_of_llama_3(read: Read) -> None:
    parsed = read("llama 3", attention_bias=True, mlp_bias=True, num_hidden_layers=1)
    layer = {
        "input_layernorm.weight": (64,),
        "self_attn.q_proj.weight": (128, 64),
        "self_attn.q_proj.bias": (128,),
        "self_attn.k_proj.weight": (64, 64),
        "self_attn.k_proj.bias": (64,),
        "self_attn.v_proj.weight": (64, 64),
        "self_attn.v_proj.bias": (64,),
        "self_attn.o_proj.weight": (64, 128),
        "self_attn.o_proj.bias": (64,),
        "post_attention_layernorm.weight": (64,),
        "mlp.gate_proj.weight": (96, 64),
        "mlp.gate_proj.bias": (96,),
        "mlp.up_proj.weight": (96, 64),
        "mlp.up_proj.bias": (96,),
        "mlp.down_proj.weight": (64, 96),
        "mlp.down_proj.bias": (64,),
    }
    assert list(parsed.architecture.tensors(parsed.config).items()) == [
        ("model.embed_tokens.weight", (48, 64)),
        *((f"model.layers.0.{name}", shape) for name, shape in layer.items()),
        ("model.norm.weight", (64,)),
        ("lm_head.weight", (48, 64)),
    ]


def test_tensors_of_qwen2(read: Read) -> None:
    parsed = read("qwen2", tie_word_embeddings=True)
    names = [name for name in parsed.architecture.tensors(parsed.config) if "layers.1" not in name]
    assert [name for name in names if name.endswith("bias")] == [
        f"model.layers.0.self_attn.{letter}_proj.bias" for letter in "qkv"
    ]
    assert "lm_head.weight" not in names


@pytest.mark.parametrize("name", FILES)
def test_tensors_that_files_carry_and_nobody_uses(name: str, read: Read) -> None:
    for tied in (True, False):
        parsed = read(name, tie_word_embeddings=tied)
        buffer = "model.layers.1.self_attn.rotary_emb.inv_freq"
        assert parsed.architecture.tolerated(buffer, parsed.config)
        assert bool(parsed.architecture.tolerated("lm_head.weight", parsed.config)) is tied
        assert parsed.architecture.tolerated("model.layers.0.mlp.extra", parsed.config) is None
