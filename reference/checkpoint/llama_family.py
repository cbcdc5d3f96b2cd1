"""What Llama, Mistral and Qwen2 share: the keys that shape them, and their tensors.

They are run by one file, `reference/models/llama.py`. They differ in which projections have a bias,
in which layers see a window, and in what is taken where a key is absent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lockstep.reference.checkpoint import config_common as common
from lockstep.reference.checkpoint.architectures import Config
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_config import read_rope
from lockstep.reference.checkpoint.rope_scaling import RopeScaling

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
# transformers before 4.32 saved this buffer; it follows from the config.
ROTARY_BUFFER = re.compile(r"model\.(layers\.[0-9]+\.self_attn\.)?rotary_emb\.inv_freq")
TIED_HEAD = re.compile(r"lm_head\.(weight|scales|biases)")


@dataclass(frozen=True)
class LlamaConfig:
    """What the forward pass of the family needs to know. Field names are keys of config.json.

    `biased` names the projections of a layer that have a bias. `layer_types` holds
    "full_attention" or "sliding_attention" for each layer; `sliding_window` is None unless some
    layer slides.
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
    biased: tuple[str, ...]
    max_position_embeddings: int
    sliding_window: int | None
    layer_types: tuple[str, ...]


def layers_of(fields: Fields) -> int:
    return fields.integer("num_hidden_layers", low=1, high=common.LAYER_LIMIT)


def parse(
    fields: Fields,
    ignore: Collection[str],
    warnings: list[str],
    *,
    biased: tuple[str, ...],
    window: int | None,
    layer_types: tuple[str, ...],
    theta: float | None,
) -> LlamaConfig:
    """Return the config, or raise InputError for the first key that is wrong.

    `theta` is the rope base where the config gives none; None refuses.
    """
    fields.choice("hidden_act", ("silu",))
    common.check_dtype(fields)
    hidden = common.width(fields, "hidden_size")
    heads = fields.integer("num_attention_heads", low=1, high=common.HEAD_LIMIT)
    groups = fields.optional_integer("num_key_value_heads", low=1, high=common.HEAD_LIMIT) or heads
    common.check_heads(fields, heads, groups)
    head_dim = _head_dim(fields, hidden, heads)
    base, scaling = read_rope(fields, ignore, warnings, dims=head_dim, theta=theta)
    return LlamaConfig(
        vocab_size=fields.integer("vocab_size", low=1, high=common.VOCAB_LIMIT),
        hidden_size=hidden,
        intermediate_size=common.width(fields, "intermediate_size"),
        num_hidden_layers=layers_of(fields),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head_dim,
        rms_norm_eps=common.eps(fields, "rms_norm_eps", warnings),
        rope_theta=base,
        rope_scaling=scaling,
        # As transformers; mlx-lm ties where the key is absent, and drops a head that is there.
        tie_word_embeddings=fields.boolean_or("tie_word_embeddings", False),
        biased=biased,
        max_position_embeddings=fields.integer(
            "max_position_embeddings", low=1, high=common.POSITION_LIMIT
        ),
        sliding_window=window,
        layer_types=layer_types,
    )


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    """Return the width of a head: given, or an equal share of the hidden width."""
    given = fields.optional_integer("head_dim", low=1, high=common.HEAD_LIMIT)
    if given is None and hidden % heads:
        what = f"hidden_size={hidden} is no multiple of num_attention_heads={heads}"
        raise InputError(fields.path, f"{what}, and there is no head_dim")
    return hidden // heads if given is None else given


def tensors(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return name -> shape, in the order of the forward pass. Matrices are (outputs, inputs)."""
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, width)}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (width,)
        shapes |= _projections(prefix, ATTENTION, config)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (width,)
        shapes |= _projections(prefix, MLP, config)
    shapes["model.norm.weight"] = (width,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, width)
    return shapes


def _projections(
    prefix: str, names: tuple[str, ...], config: LlamaConfig
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        rows, columns = _sizes(config)[name]
        shapes[f"{prefix}.{name}.weight"] = (rows, columns)
        if name in config.biased:
            shapes[f"{prefix}.{name}.bias"] = (rows,)
    return shapes


def _sizes(config: LlamaConfig) -> Mapping[str, tuple[int, int]]:
    width, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    attention = ((queries, width), (keys, width), (keys, width), (width, queries))
    mlp = ((inner, width), (inner, width), (width, inner))
    return dict(zip((*ATTENTION, *MLP), (*attention, *mlp), strict=True))


def tolerated(name: str, config: Config) -> str | None:
    """Return why a tensor that no layer needs may be there all the same, or None."""
    if ROTARY_BUFFER.fullmatch(name):
        return "they are computed from the config"
    if config.tie_word_embeddings and TIED_HEAD.fullmatch(name):
        return "the head is tied to the embedding"
    return None
