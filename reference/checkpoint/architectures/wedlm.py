"""WeDLM: Qwen3's layers in the 8B build, Qwen2.5's in the 7B build, under one `model_type`.

It was trained to fill in masks, but what it is made of is a causal transformer like others: given
text it tells the next token. Its own decoder only chooses in which order tokens stand.
"""

from __future__ import annotations

from collections.abc import Collection

from lockstep.reference.checkpoint import config_common as common
from lockstep.reference.checkpoint import llama_family as family
from lockstep.reference.checkpoint.architectures import Shapes, qwen2, qwen3
from lockstep.reference.checkpoint.config_fields import Fields

CLASSES = ("WeDLMForCausalLM",)
MODEL = "qwen3"  # that of the 8B build; `model_of` tells
IGNORED = {"mask_token_id": "only the decoder puts masks in; to a forward pass they are tokens"}

Config = qwen3.Qwen3Config | family.LlamaConfig


def parse(fields: Fields, ignore: Collection[str], warnings: list[str]) -> Config:
    """Return the config of either build, or raise InputError for the first key that is wrong.

    Engines differ in which key says that queries and keys are normed: `qk_norm`, or the absence of
    biases. Where the two keys do not say the same, no published file tells who is right.
    """
    biased = fields.boolean("attention_bias")
    if fields.boolean_or("qk_norm", False) is biased:
        fields.refuse(
            "qk_norm", f"must be {str(not biased).lower()}, the contrary of attention_bias"
        )
    if not biased:
        return qwen3.parse(fields, ignore, warnings)
    window, layer_types = common.window_by_depth(fields, family.layers_of(fields), warnings)
    return family.parse(
        fields, ignore, warnings,
        biased=qwen2.BIASED, window=window, layer_types=layer_types, theta=None,
    )  # fmt: skip


def model_of(config: Config) -> str:
    return qwen3.MODEL if isinstance(config, qwen3.Qwen3Config) else qwen2.MODEL


def tensors(config: Config) -> Shapes:
    """Return name -> shape, in the order of the forward pass. Matrices are (outputs, inputs)."""
    if isinstance(config, qwen3.Qwen3Config):
        return qwen3.tensors(config)
    return family.tensors(config)


def tolerated(name: str, config: Config) -> str | None:
    """Return why a tensor that no layer needs may be there all the same, or None."""
    if isinstance(config, qwen3.Qwen3Config):
        return qwen3.tolerated(name, config)
    return family.tolerated(name, config)
