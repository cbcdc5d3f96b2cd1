"""Gemma 4, the text model: its tensors, and where files have them."""

from __future__ import annotations

import re

from lockstep.reference.checkpoint.architectures import Shapes
from lockstep.reference.checkpoint.gemma4_config import Gemma4Config, parse
from lockstep.reference.checkpoint.sources import Source

__all__ = ["CLASSES", "IGNORED", "MODEL", "parse", "sources", "tensors", "tolerated"]

CLASSES = ("Gemma4ForCausalLM",)
MODEL = "gemma4"
IGNORED: dict[str, str] = {}

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# transformers' text model; its multimodal model; mlx-lm's multimodal model.
PREFIXES = ("model.", "model.language_model.", "language_model.model.")
TIED_HEAD = re.compile(r"(language_model\.)?lm_head\.(weight|scales|biases)")
ROTARY_BUFFER = re.compile(r".*\.rotary_emb\..*")
SHARED = re.compile(r".*layers\.([0-9]+)\.self_attn\.[kv]_(proj|norm)\.(weight|scales|biases)")


def tensors(config: Gemma4Config) -> Shapes:
    """Return name -> shape, in the order of the forward pass. Matrices are (outputs, inputs).

    The experts of a layer are one stack for each projection, (experts, outputs, inputs).
    """
    width, extra, layers = (
        config.hidden_size, config.hidden_size_per_layer_input, config.num_hidden_layers
    )  # fmt: skip
    shapes: Shapes = {EMBEDDING: (config.vocab_size, width)}
    if extra:
        table = (config.vocab_size_per_layer_input, layers * extra)
        shapes["model.embed_tokens_per_layer.weight"] = table
        shapes["model.per_layer_model_projection.weight"] = (layers * extra, width)
        shapes["model.per_layer_projection_norm.weight"] = (extra,)
    for layer in range(layers):
        parts = _attention(config, layer) | _mlp(config, layer)
        parts |= _moe(config) if config.enable_moe_block else {}
        parts["post_feedforward_layernorm.weight"] = (width,)
        parts |= _layer_input(config) if extra else {}
        parts["layer_scalar"] = (1,)
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    shapes["model.norm.weight"] = (width,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, width)
    return shapes


def _attention(config: Gemma4Config, layer: int) -> Shapes:
    width, (groups, wide) = config.hidden_size, config.heads_of(layer)
    queries = config.num_attention_heads * wide
    shapes: Shapes = {"input_layernorm.weight": (width,)}
    shapes["self_attn.q_proj.weight"] = (queries, width)
    shapes["self_attn.q_norm.weight"] = (wide,)
    if config.owns_keys(layer):
        shapes["self_attn.k_proj.weight"] = (groups * wide, width)
        shapes["self_attn.k_norm.weight"] = (wide,)
        if config.has_values(layer):
            shapes["self_attn.v_proj.weight"] = (groups * wide, width)
    shapes["self_attn.o_proj.weight"] = (width, queries)
    shapes["post_attention_layernorm.weight"] = (width,)
    return shapes


def _mlp(config: Gemma4Config, layer: int) -> Shapes:
    width, inner = config.hidden_size, config.inner_width(layer)
    return {
        "pre_feedforward_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }


def _moe(config: Gemma4Config) -> Shapes:
    count, width, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
    return {
        "post_feedforward_layernorm_1.weight": (width,),
        "router.scale": (width,),
        "router.proj.weight": (count, width),
        "router.per_expert_scale": (count,),
        "pre_feedforward_layernorm_2.weight": (width,),
        "experts.gate_proj.weight": (count, inner, width),
        "experts.up_proj.weight": (count, inner, width),
        "experts.down_proj.weight": (count, width, inner),
        "post_feedforward_layernorm_2.weight": (width,),
    }


def _layer_input(config: Gemma4Config) -> Shapes:
    width, extra = config.hidden_size, config.hidden_size_per_layer_input
    return {
        "per_layer_input_gate.weight": (extra, width),
        "per_layer_projection.weight": (width, extra),
        "post_per_layer_input_norm.weight": (width,),
    }


def sources(config: Gemma4Config, files: Shapes) -> dict[str, Source]:
    """Return where each tensor lies: under which prefix, and the experts in which of two forms.

    transformers stacks the experts, the rows of `gate_proj` above those of `up_proj`; mlx-lm has
    one stack for each projection.
    """
    prefix = next((one for one in PREFIXES if f"{one}embed_tokens.weight" in files), PREFIXES[0])
    places = {name: Source((name.replace("model.", prefix, 1),)) for name in tensors(config)}
    if HEAD in places:
        wrapped = f"language_model.{HEAD}"
        places[HEAD] = Source((wrapped if wrapped in files else HEAD,))
    for layer in range(config.num_hidden_layers if config.enable_moe_block else 0):
        path = f"layers.{layer}.experts"
        for half, name in enumerate(("gate_proj", "up_proj", "down_proj")):
            place = Source((f"{prefix}{path}.switch_glu.{name}.weight",))
            if f"{prefix}{path}.gate_up_proj" in files:
                fused = Source((f"{prefix}{path}.gate_up_proj",), half=half)
                place = fused if half < 2 else Source((f"{prefix}{path}.down_proj",))
            places[f"model.{path}.{name}.weight"] = place
    return places


def tolerated(name: str, config: Gemma4Config) -> str | None:
    """Return why a tensor that no layer needs may be there all the same, or None."""
    if ROTARY_BUFFER.fullmatch(name):
        return "they are computed from the config"
    if config.tie_word_embeddings and TIED_HEAD.fullmatch(name):
        return "the head is tied to the embedding"
    found = SHARED.fullmatch(name)
    if found and not config.owns_keys(int(found[1])) and int(found[1]) < config.num_hidden_layers:
        return "these layers take their keys and values from an earlier one"
    return None
