"""Gemma 4, the multimodal layout: the text model inside it is read, images and sound are not."""

from __future__ import annotations

import re
from collections.abc import Collection

from lockstep.reference.checkpoint import config_common as common
from lockstep.reference.checkpoint.architectures import gemma4_text
from lockstep.reference.checkpoint.architectures.gemma4_text import MODEL, sources, tensors
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import IGNORED as COMMON
from lockstep.reference.checkpoint.config_keys import check_leftovers
from lockstep.reference.checkpoint.gemma4_config import Gemma4Config

__all__ = ["CLASSES", "IGNORED", "MODEL", "parse", "sources", "tensors", "tolerated"]

CLASSES = ("Gemma4ForConditionalGeneration",)
OTHERS = "only images and sound use it"
TOWERS = "only images and sound use them"
IGNORED: dict[str, str] = {
    "vision_config": OTHERS,
    "audio_config": OTHERS,
    "image_token_id": OTHERS,
    "video_token_id": OTHERS,
    "audio_token_id": OTHERS,
    "boi_token_id": OTHERS,
    "eoi_token_id": OTHERS,
    "boa_token_id": OTHERS,
    "eoa_token_id": OTHERS,
    "eoa_token_index": OTHERS,
    "vision_soft_tokens_per_image": OTHERS,
}
UNHEARD = re.compile(
    r"(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio|multi_modal_projector"
    r"|vision_embedder)\..*"
)
CLIPS = re.compile(r".*\.(input|output)_(min|max)")


def parse(fields: Fields, ignore: Collection[str], warnings: list[str]) -> Gemma4Config:
    """Return the config of the text model, from the object that holds it."""
    raw = fields.get("text_config")
    if not isinstance(raw, dict):
        fields.refuse("text_config", "must be an object: it describes the text model")
    inner = Fields(raw, fields.path, "text_config.")
    if inner.get("model_type") not in (None, "gemma4_text"):
        inner.refuse("model_type", "must be 'gemma4_text'")
    for key in ("architectures", "eos_token_id"):  # config.json itself says both
        inner.get(key)
    config = gemma4_text.parse(inner, ignore, warnings)
    check_leftovers(inner, ignore, warnings, COMMON.keys() | gemma4_text.IGNORED)
    for key in ("tie_word_embeddings", "vocab_size"):  # some writers repeat it outside
        if fields.get(key) not in (None, getattr(config, key)):
            fields.refuse(key, f"must be {getattr(config, key)}, as in text_config")
    common.check_dtype(fields)
    return config


def tolerated(name: str, config: Gemma4Config) -> str | None:
    """Return why a tensor that no layer needs may be there all the same, or None."""
    if UNHEARD.fullmatch(name) or CLIPS.fullmatch(name):
        return TOWERS
    return gemma4_text.tolerated(name, config)
