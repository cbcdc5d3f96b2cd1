"""Which tensors a Qwen3 checkpoint must hold, by the Hugging Face names, and their shapes."""

from __future__ import annotations

import re

from lockstep.reference.checkpoint.config import Qwen3Config

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# transformers before 4.32 saved this buffer; it follows from the config.
ROTARY_BUFFER = re.compile(r"model\.(layers\.[0-9]+\.self_attn\.)?rotary_emb\.inv_freq")
TIED_HEAD = re.compile(r"lm_head\.(weight|scales|biases)")

Shapes = dict[str, tuple[int, ...]]


def expected_tensors(config: Qwen3Config) -> Shapes:
    """Return name -> shape, in the order of the forward pass. Matrices are (outputs, inputs)."""
    width, shapes = config.hidden_size, {}
    shapes[EMBEDDING] = (config.vocab_size, width)
    for layer in range(config.num_hidden_layers):
        for name, shape in _layer(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (width,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, width)
    return shapes


def tolerated(name: str, config: Qwen3Config) -> str | None:
    """Return why a tensor that no layer needs may be there all the same, or None."""
    if ROTARY_BUFFER.fullmatch(name):
        return "they are computed from the config"
    if config.tie_word_embeddings and TIED_HEAD.fullmatch(name):
        return "the head is tied to the embedding"
    return None


def _layer(config: Qwen3Config) -> Shapes:
    width, inner = config.hidden_size, config.intermediate_size
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
    shapes["mlp.gate_proj.weight"] = (inner, width)
    shapes["mlp.up_proj.weight"] = (inner, width)
    shapes["mlp.down_proj.weight"] = (width, inner)
    return shapes
