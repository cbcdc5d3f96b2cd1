"""What Qwen3 and Qwen3-MoE share: the tensors around their layers, and those of a dense layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lockstep.reference.checkpoint.architectures import Config, Shapes
from lockstep.reference.checkpoint.llama_family import EMBEDDING, HEAD


class Qwen3(Config, Protocol):
    """The config of either."""

    @property
    def attention_bias(self) -> bool: ...


def tensors(config: Qwen3, layer: Callable[[int], Shapes]) -> Shapes:
    """Return name -> shape of all; `layer(number)` has a layer's, by names without its path."""
    shapes: Shapes = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for number in range(config.num_hidden_layers):
        for name, shape in layer(number).items():
            shapes[f"model.layers.{number}.{name}"] = shape
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def attention(config: Qwen3) -> Shapes:
    """Return the shapes of a layer's projections and norms, up to the one before its MLP."""
    width = config.hidden_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    shapes: Shapes = {"input_layernorm.weight": (width,)}
    for name, rows, columns in (
        ("q_proj", queries, width),
        ("k_proj", keys, width),
        ("v_proj", keys, width),
        ("o_proj", width, queries),
    ):
        shapes[f"self_attn.{name}.weight"] = (rows, columns)
        if config.attention_bias:
            shapes[f"self_attn.{name}.bias"] = (rows,)
    shapes["self_attn.q_norm.weight"] = (config.head_dim,)
    shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    shapes["post_attention_layernorm.weight"] = (width,)
    return shapes


def mlp(config: Qwen3) -> Shapes:
    """Return the shapes of a dense layer's MLP."""
    width, inner = config.hidden_size, config.intermediate_size
    return {
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
