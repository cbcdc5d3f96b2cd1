"""Mistral: its config and its tensors, which are Llama's. Its window holds for every layer."""

from __future__ import annotations

from collections.abc import Collection

from lockstep.reference.checkpoint import config_common as common
from lockstep.reference.checkpoint import llama_family as family
from lockstep.reference.checkpoint.config_common import FULL, SLIDING
from lockstep.reference.checkpoint.config_fields import Fields

CLASSES = ("MistralForCausalLM",)
MODEL = "llama"
IGNORED: dict[str, str] = {}

tensors, tolerated = family.tensors, family.tolerated


def parse(fields: Fields, ignore: Collection[str], warnings: list[str]) -> family.LlamaConfig:
    """Return the config, or raise InputError for the first key that is wrong."""
    window, layer_types = _window(fields)
    return family.parse(
        fields, ignore, warnings, biased=(), window=window, layer_types=layer_types, theta=None
    )


def _window(fields: Fields) -> tuple[int | None, tuple[str, ...]]:
    """Resolve which layers slide: all if there is a window, unless `layer_types` says which.

    An absent `sliding_window` means 4096 to transformers and none to mlx-lm, so it must be there.
    """
    layers = family.layers_of(fields)
    if "sliding_window" not in fields.raw:
        fields.refuse("sliding_window", "must be an integer or null")
    window = fields.optional_integer("sliding_window", low=1, high=common.POSITION_LIMIT)
    given = common.layer_types(fields, layers)
    kinds = given or (FULL if window is None else SLIDING,) * layers
    if SLIDING in kinds and window is None:
        fields.refuse("layer_types", "has sliding layers, but there is no sliding window")
    return (window if SLIDING in kinds else None), kinds
