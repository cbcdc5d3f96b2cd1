"""The keys of config.json of Gemma 4, from the metadata and the tensors of a GGUF file.

Layers are of two kinds, sliding and full. `attention.key_length` and `rope.freq_base` are those of
full layers, the keys that end in `_swa` those of sliding ones. What differs from layer to layer is
an array; what a layer lacks is seen in its tensors.

Source: `Gemma4Model` in conversion/gemma.py and src/models/gemma4.cpp of llama.cpp.
"""

from __future__ import annotations

import re
from math import nextafter
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.config_common import FULL, HEAD_LIMIT, LAYER_LIMIT, SLIDING
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.gemma4_config import Gemma4Config
from lockstep.reference.checkpoint.gguf.keys import Keys
from lockstep.reference.checkpoint.gguf.names import EMBEDDING, FREQUENCIES, HEAD
from lockstep.reference.checkpoint.gguf.parts import Gguf

GEMMA4_KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length_swa",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "layer_types": "attention.sliding_window_pattern",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "final_logit_softcapping": "final_logit_softcapping",
    "num_experts": "expert_count",
    "top_k_experts": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "vocab_size": "vocab_size",
}
PLAIN_KEYS = (
    *("hidden_size", "num_attention_heads", "max_position_embeddings"),
    *("sliding_window", "hidden_size_per_layer_input", "vocab_size"),
    *("num_experts", "top_k_experts", "moe_intermediate_size"),
)
KEYS_OR_VALUES = re.compile(r"blk\.([0-9]+)\.attn_(k|v|k_norm)\.weight")
LAYER_TABLE, ROUTER = "per_layer_token_embd.weight", "blk.0.ffn_gate_inp.weight"
# llama.cpp's own default of both bases, where a file says nothing.
USUAL_THETA = 10_000.0
# A pair whose frequency is divided by this stands still.
STILL = np.float32(1e30)


def gemma4(keys: Keys) -> dict[str, Any]:
    """Return the keys of config.json. Raises InputError for what Gemma 4 cannot be."""
    entries = keys.file.entries
    layers = keys.integer("block_count", low=1, high=LAYER_LIMIT)
    shared = keys.integer("attention.shared_kv_layers", low=0, high=layers - 1, missing=0)
    kinds = _kinds(keys, layers)
    raw = {key: keys.value(GEMMA4_KEYS[key]) for key in PLAIN_KEYS}
    width, raw["head_dim"] = _widths(keys, ""), _widths(keys, "_swa")
    tables = {"vocab_size_per_layer_input": LAYER_TABLE}
    tables |= {"vocab_size": EMBEDDING} if raw["vocab_size"] is None else {}
    raw |= {key: entries[name].shape[0] for key, name in tables.items() if name in entries}
    return raw | _heads(keys, kinds, width) | _mlp(keys, layers, shared) | {
        "num_hidden_layers": layers,
        "num_kv_shared_layers": shared,
        "layer_types": kinds,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon", None),
        "rope_parameters": _ropes(keys, width),
        "final_logit_softcapping": _cap(keys),
        "attention_k_eq_v": f"blk.{kinds.index(FULL)}.attn_v.weight" not in entries,
        "enable_moe_block": ROUTER in entries,
        "tie_word_embeddings": HEAD not in entries,
        "hidden_activation": "gelu_pytorch_tanh",
    }  # fmt: skip


def _widths(keys: Keys, end: str) -> int:
    """Return how wide heads are; queries, values and what is turned of them must be as wide."""
    width = keys.integer(f"attention.key_length{end}", low=2, high=HEAD_LIMIT)
    keys.check_widths(width, f"attention.value_length{end}", f"rope.dimension_count{end}")
    return width


def _kinds(keys: Keys, layers: int) -> list[str]:
    """Return the kind of each layer. transformers makes the last one full, llama.cpp does not."""
    name = "attention.sliding_window_pattern"
    slides = keys.each(name, layers)
    if any(type(one) is not bool for one in slides):
        keys.refuse(name, "must be an array of bools, one for each layer", slides[0])
    if slides[-1]:
        keys.refuse(name, "must be false for the last layer", True)
    return [SLIDING if one else FULL for one in slides]


def _heads(keys: Keys, kinds: list[str], width: int) -> dict[str, Any]:
    """Return how many key/value heads a layer of either kind has, and how wide full ones are."""
    name, found = "attention.head_count_kv", {}
    for kind, count in zip(kinds, keys.each(name, len(kinds)), strict=True):
        if found.setdefault(kind, count) != count:
            keys.refuse(name, "must be the same for all layers of a kind", count)
    full = {"num_key_value_heads": found[FULL], "head_dim": width}
    if found[FULL] is None:  # llama.cpp takes as many as there are queries
        found = dict.fromkeys(found, keys.value("attention.head_count"))
        full["num_key_value_heads"] = found[FULL]
    listed = {str(layer): full for layer, kind in enumerate(kinds) if kind == FULL}
    return {
        "num_key_value_heads": found.get(SLIDING, found[FULL]),
        "per_layer_config": listed,
    }


def _mlp(keys: Keys, layers: int, shared: int) -> dict[str, Any]:
    """Return the width of the MLP, and whether it is double in the layers without keys."""
    name = "feed_forward_length"
    widths = keys.each(name, layers)
    own = widths[0]
    if type(own) is not int:
        keys.refuse(name, "must be a positive integer or an array of them", own)
    double = shared > 0 and widths[-1] == 2 * own
    wanted = [own] * (layers - shared) + [2 * own if double else own] * shared
    if widths != wanted:
        odd = next(layer for layer in range(layers) if widths[layer] != wanted[layer])
        keys.refuse(name, f"must be {wanted[odd]} for layer {odd}", widths[odd])
    return {"intermediate_size": own, "use_double_wide_mlp": double}


def _cap(keys: Keys) -> float | None:
    """Return what logits are capped at; llama.cpp writes 0 for none.

    Its converter writes no key for a model without a cap, and llama.cpp then caps at 30.
    """
    found = keys.number("final_logit_softcapping", None)
    if type(found) is not float:
        keys.refuse("final_logit_softcapping", "must be a number, 0 for no cap", found)
    return found or None


def _ropes(keys: Keys, width: int) -> dict[str, Any]:
    found = {}
    for kind, name in ((SLIDING, "rope.freq_base_swa"), (FULL, "rope.freq_base")):
        theta = keys.number(name, USUAL_THETA)
        if type(theta) is not float:
            keys.refuse(name, "must be a number", theta)
        found[kind] = {"rope_type": "default", "rope_theta": theta}
    part = {"rope_type": "proportional", "partial_rotary_factor": _part(keys.file, width)}
    return found | {FULL: found[FULL] | part}


def _part(file: Gguf, width: int) -> float:
    """Return which part of a full layer's pairs turns: those whose frequency is divided by 1.

    The others stand still. Their divisor is so large that they hardly turn in llama.cpp.
    """
    entry, pairs = file.entries.get(FREQUENCIES), width // 2
    if entry is None:
        raise InputError(file.path, f"missing {FREQUENCIES}: it says which pairs turn")
    if entry.shape != (pairs,) or entry.dtype != "F32":
        what = f"{FREQUENCIES} is {entry.dtype} {show(entry.shape, 40)}, it must be F32 [{pairs}]"
        raise InputError(file.path, what)
    divisors = np.asarray(file.read(FREQUENCIES))
    turned = int(np.sum(divisors == 1))
    wanted = np.where(np.arange(pairs) < turned, np.float32(1), STILL)
    if (odd := np.flatnonzero(divisors != wanted)).size:
        what = f"{FREQUENCIES} must be 1 for the pairs that turn, then 1e30"
        raise InputError(file.path, what, f"found {show(float(divisors[odd[0]]))} at {odd[0]}")
    part = turned / pairs
    # Their product must not fall short of a whole number of pairs.
    return part if int(part * width // 2) == turned else nextafter(part, 1)


def idle(name: str, config: Any) -> bool:
    """Tell whether files carry a tensor that no layer needs: keys of layers that have none."""
    found = KEYS_OR_VALUES.fullmatch(name)
    if found is None or not isinstance(config, Gemma4Config):
        return False
    return int(found[1]) < config.num_hidden_layers and not config.owns_keys(int(found[1]))
