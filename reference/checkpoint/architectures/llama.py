"""Llama, 1 to 3: its config and its tensors."""

from __future__ import annotations

from collections.abc import Collection

from lockstep.reference.checkpoint import llama_family as family
from lockstep.reference.checkpoint.config_common import FULL
from lockstep.reference.checkpoint.config_fields import Fields

CLASSES = ("LlamaForCausalLM",)
MODEL = "llama"
IGNORED = {"pretraining_tp": "split the products of the training run, not their result"}
# Files of Llama 1 and 2 say nothing of it; every engine takes this.
USUAL_THETA = 10_000.0

tensors, tolerated = family.tensors, family.tolerated


def parse(fields: Fields, ignore: Collection[str], warnings: list[str]) -> family.LlamaConfig:
    """Return the config, or raise InputError for the first key that is wrong."""
    # The tensors confirm both: a bias that is there and not announced is an unknown tensor.
    attention = family.ATTENTION if fields.boolean_or("attention_bias", False) else ()
    mlp = family.MLP if fields.boolean_or("mlp_bias", False) else ()
    return family.parse(
        fields,
        ignore,
        warnings,
        biased=(*attention, *mlp),
        window=None,
        layer_types=(FULL,) * family.layers_of(fields),
        theta=USUAL_THETA,
    )
