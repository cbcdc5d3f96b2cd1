"""Qwen2 and Qwen2.5: Llama's tensors, with biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Collection

from lockstep.reference.checkpoint import config_common as common
from lockstep.reference.checkpoint import llama_family as family
from lockstep.reference.checkpoint.config_fields import Fields

CLASSES = ("Qwen2ForCausalLM",)
MODEL = "llama"
IGNORED: dict[str, str] = {}
BIASED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

tensors, tolerated = family.tensors, family.tolerated


def parse(fields: Fields, ignore: Collection[str], warnings: list[str]) -> family.LlamaConfig:
    """Return the config, or raise InputError for the first key that is wrong."""
    window, layer_types = common.window_by_depth(fields, family.layers_of(fields), warnings)
    return family.parse(
        fields, ignore, warnings, biased=BIASED, window=window, layer_types=layer_types, theta=None
    )
