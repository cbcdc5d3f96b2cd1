"""From the metadata of a GGUF file to the keys of config.json, which the architecture then reads.

Every key of the architecture is used, ignored for a reason, or refused by name, as in config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NoReturn

import numpy as np

from lockstep.reference.checkpoint.architectures import Architecture, architecture_of
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.gguf.gemma4 import GEMMA4_KEYS, gemma4
from lockstep.reference.checkpoint.gguf.keys import Keys
from lockstep.reference.checkpoint.gguf.names import EMBEDDING, FREQUENCIES, HEAD
from lockstep.reference.checkpoint.gguf.parts import Gguf

# `general.architecture`: the `model_type` whose file in `architectures/` reads the config.
MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gpt2": "gpt2",
    "gemma4": "gemma4_text",
}
ARCHITECTURE = "general.architecture"
KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
}
EXPERT_KEYS = {
    "moe_intermediate_size": "expert_feed_forward_length",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
}
GPT2_KEYS = {
    "n_layer": "block_count",
    "n_embd": "embedding_length",
    "n_inner": "feed_forward_length",
    "n_head": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "vocab_size": "vocab_size",
}
SPELLED = {"gpt2": GPT2_KEYS, "gemma4": GEMMA4_KEYS}
# What llama.cpp does in this architecture, whatever the metadata say.
FIXED = {
    "gpt2": {"activation_function": "gelu_new"},
    "qwen3moe": {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
}
NULLABLE = ("final_logit_softcapping",)  # absent is something else
PLAIN, LINEAR, YARN = "none", "linear", "yarn"
# llama.cpp's own default, where a file says nothing.
USUAL_THETA = 10_000.0


class Hyperparameters(Fields):
    """The keys of config.json under their own names, and in messages under those of the file."""

    def __init__(self, raw: dict[str, Any], file: Gguf, kind: str) -> None:
        super().__init__(raw, file.path)
        self._kind = kind

    def refuse(self, key: str, demand: str) -> NoReturn:
        names = SPELLED.get(self._kind, KEYS | EXPERT_KEYS)
        spelled = f"{self._kind}.{names[key]}" if key in names else key
        found = show(self.raw[key], 60) if key in self.raw else "nothing"
        raise InputError(self.path, f"field {show(spelled)} {demand}", f"found {found}")


def read_config(
    file: Gguf, *, ignore: Collection[str], warnings: list[str]
) -> tuple[Architecture, Any]:
    """Return the architecture that the metadata name, and its config.

    Raises InputError if the architecture is none that is read, or for the first key that is wrong.
    """
    kind = file.metadata.get(ARCHITECTURE)
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        what = f"unsupported architecture {show(kind, 60)}, {' or '.join(MODEL_TYPES)} is read"
        raise InputError(file.path, what, ARCHITECTURE)
    keys = Keys(file, kind)
    raw = READERS.get(kind, _rotary)(keys)
    raw = {key: value for key, value in raw.items() if value is not None or key in NULLABLE}
    raw |= FIXED.get(kind, {}) | {"model_type": MODEL_TYPES[kind]}
    keys.check_leftovers(ignore, warnings)
    fields = Hyperparameters(raw, file, kind)
    architecture = architecture_of(fields)
    return architecture, architecture.parse(fields, frozenset(), warnings)


def _rotary(keys: Keys) -> dict[str, Any]:
    """Return the keys of config.json of a model that turns its queries and keys."""
    spelled = KEYS | (EXPERT_KEYS if keys.kind == "qwen3moe" else {})
    raw = {key: keys.value(name) for key, name in spelled.items()} | {"hidden_act": "silu"}
    raw["rope_theta"] = keys.number("rope.freq_base", USUAL_THETA)
    raw["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon", None)
    raw |= _usual(raw, keys.file) | _switches(keys.file)
    keys.check_widths(raw["head_dim"], "attention.value_length", "rope.dimension_count")
    return raw | {"rope_parameters": _rope(keys, raw)}


def _gpt2(keys: Keys) -> dict[str, Any]:
    """Return the keys of config.json of GPT-2, which has a table of positions."""
    raw = {key: keys.value(name) for key, name in GPT2_KEYS.items()}
    raw["layer_norm_epsilon"] = keys.number("attention.layer_norm_epsilon", None)
    if raw["vocab_size"] is None and EMBEDDING in keys.file.entries:
        raw["vocab_size"] = keys.file.entries[EMBEDDING].shape[0]
    heads, width = raw["n_head"], raw["n_embd"]
    if type(heads) is int and type(width) is int and heads > 0:
        keys.check_widths(width // heads, "attention.key_length", "attention.value_length")
    return raw | {"tie_word_embeddings": HEAD not in keys.file.entries}


def _usual(raw: dict[str, Any], file: Gguf) -> dict[str, Any]:
    """Return what llama.cpp takes where a key is absent."""
    found: dict[str, Any] = {}
    heads, width = raw["num_attention_heads"], raw["hidden_size"]
    if raw["num_key_value_heads"] is None:
        found["num_key_value_heads"] = heads
    if raw["head_dim"] is None and type(heads) is int and type(width) is int and heads > 0:
        found["head_dim"] = width // heads
    if raw["vocab_size"] is None and EMBEDDING in file.entries:
        found["vocab_size"] = file.entries[EMBEDDING].shape[0]
    return found


def _switches(file: Gguf) -> dict[str, Any]:
    """Return what the file says by which tensors it has."""
    return {
        "tie_word_embeddings": HEAD not in file.entries,
        "attention_bias": "blk.0.attn_q.bias" in file.entries,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.entries,
    }


def _rope(keys: Keys, raw: dict[str, Any]) -> dict[str, Any] | None:
    """Return how positions are stretched, in the words of config.json; None if they are not."""
    kind = keys.value("rope.scaling.type")
    factor = keys.number("rope.scaling.factor", None)
    original = keys.value("rope.scaling.original_context_length")
    if FREQUENCIES in keys.file.entries:
        if kind not in (None, PLAIN):
            what = f"both {FREQUENCIES} and the scaling {show(kind, 30)} are given"
            raise InputError(keys.file.path, what)
        return _divided(keys.file, raw)
    if kind in (None, PLAIN):
        return None
    if kind not in (LINEAR, YARN):
        what = f"rope scaling {show(kind, 40)} is not read, {LINEAR} and {YARN} are"
        raise InputError(keys.file.path, what, f"{keys.kind}.rope.scaling.type")
    stretched = {"rope_type": kind, "factor": factor}
    return stretched | ({"original_max_position_embeddings": original} if kind == YARN else {})


def _divided(file: Gguf, raw: dict[str, Any]) -> dict[str, Any]:
    """Return frequencies that come divided one by one, as those of Llama 3 do.

    `rope_freqs.weight` has the divisors: longrope with the same list for short and long texts.
    """
    entry, pairs = file.entries[FREQUENCIES], raw["head_dim"] // 2
    if entry.shape != (pairs,) or entry.dtype != "F32":
        what = f"{FREQUENCIES} is {entry.dtype} {show(entry.shape, 40)}, it must be F32 [{pairs}]"
        raise InputError(file.path, what)
    divisors = np.asarray(file.read(FREQUENCIES), np.float64).tolist()
    return {
        "rope_type": "longrope",
        "attention_factor": 1.0,
        "original_max_position_embeddings": raw["max_position_embeddings"],
        "short_factor": divisors,
        "long_factor": divisors,
    }


# `general.architecture`: what reads its keys, if `_rotary` does not.
READERS: dict[str, Callable[[Keys], dict[str, Any]]] = {"gpt2": _gpt2, "gemma4": gemma4}
