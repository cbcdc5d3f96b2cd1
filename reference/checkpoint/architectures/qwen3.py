"""Qwen3, dense: its config and its tensors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lockstep.reference.checkpoint import config_common as common
from lockstep.reference.checkpoint import llama_family
from lockstep.reference.checkpoint import qwen3_family as family
from lockstep.reference.checkpoint.architectures import Shapes
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.rope_config import read_rope
from lockstep.reference.checkpoint.rope_scaling import RopeScaling

CLASSES = ("Qwen3ForCausalLM",)
MODEL = "qwen3"
IGNORED: dict[str, str] = {}

tolerated = llama_family.tolerated


@dataclass(frozen=True)
class Qwen3Config:
    """What a Qwen3 forward pass needs to know. Field names are the keys of config.json.

    `layer_types` holds "full_attention" or "sliding_attention" for each layer; `sliding_window` is
    None unless some layer slides.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    tie_word_embeddings: bool
    attention_bias: bool
    max_position_embeddings: int
    sliding_window: int | None
    layer_types: tuple[str, ...]


def parse(fields: Fields, ignore: Collection[str], warnings: list[str]) -> Qwen3Config:
    """Return the config, or raise InputError for the first key that is wrong."""
    layers = fields.integer("num_hidden_layers", low=1, high=common.LAYER_LIMIT)
    window, layer_types = common.window_by_depth(fields, layers, warnings)
    head_dim = fields.integer("head_dim", low=2, high=common.HEAD_LIMIT)
    theta, scaling = read_rope(fields, ignore, warnings, dims=head_dim)
    fields.choice("hidden_act", ("silu",))
    common.check_dtype(fields)
    config = Qwen3Config(
        vocab_size=fields.integer("vocab_size", low=1, high=common.VOCAB_LIMIT),
        hidden_size=common.width(fields, "hidden_size"),
        intermediate_size=common.width(fields, "intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=fields.integer("num_attention_heads", low=1, high=common.HEAD_LIMIT),
        num_key_value_heads=fields.integer("num_key_value_heads", low=1, high=common.HEAD_LIMIT),
        head_dim=head_dim,
        rms_norm_eps=common.eps(fields, "rms_norm_eps", warnings),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=fields.boolean("tie_word_embeddings"),
        # The tensors confirm it: a bias that is there and not announced is an unknown tensor.
        attention_bias=fields.boolean_or("attention_bias", False),
        max_position_embeddings=fields.integer(
            "max_position_embeddings", low=1, high=common.POSITION_LIMIT
        ),
        sliding_window=window,
        layer_types=layer_types,
    )
    common.check_heads(fields, config.num_attention_heads, config.num_key_value_heads)
    return config


def tensors(config: Qwen3Config) -> Shapes:
    """Return name -> shape, in the order of the forward pass. Matrices are (outputs, inputs)."""
    return family.tensors(config, lambda layer: family.attention(config) | family.mlp(config))
