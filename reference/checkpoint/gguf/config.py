"""From the metadata of a GGUF file to the keys of config.json, which the architecture then reads.

Every key of the architecture is used, ignored for a reason, or refused by name, as in config.json.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn

import numpy as np

from lockstep.reference.checkpoint.architectures import Architecture, architecture_of
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.errors import InputError, show, show_names
from lockstep.reference.checkpoint.gguf.file import GgufFile
from lockstep.reference.checkpoint.gguf.metadata import Array
from lockstep.reference.checkpoint.gguf.names import EMBEDDING, FREQUENCIES, HEAD

# `general.architecture`: the `model_type` whose file in `architectures/` reads the config.
MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gpt2": "gpt2",
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
# What llama.cpp does in this architecture, whatever the metadata say.
FIXED = {
    "gpt2": {"activation_function": "gelu_new"},
    "qwen3moe": {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
}
IGNORED = {
    "tensor_data_layout": "says who wrote the first file; the rows have llama.cpp's order",
    "rope.scaling.finetuned": "says how the model was trained",
}
PLAIN, LINEAR, YARN = "none", "linear", "yarn"
# llama.cpp's own default, where a file says nothing.
USUAL_THETA = 10_000.0


class Hyperparameters(Fields):
    """The keys of config.json under their own names, and in messages under those of the file."""

    def __init__(self, raw: dict[str, Any], file: GgufFile, kind: str) -> None:
        super().__init__(raw, file.path)
        self._kind = kind

    def refuse(self, key: str, demand: str) -> NoReturn:
        names = KEYS | EXPERT_KEYS | GPT2_KEYS
        spelled = f"{self._kind}.{names[key]}" if key in names else key
        found = show(self.raw[key], 60) if key in self.raw else "nothing"
        raise InputError(self.path, f"field {show(spelled)} {demand}", f"found {found}")


def read_config(
    file: GgufFile, *, ignore: Collection[str], warnings: list[str]
) -> tuple[Architecture, Any]:
    """Return the architecture that the metadata name, and its config.

    Raises InputError if the architecture is none that is read, or for the first key that is wrong.
    """
    kind = file.metadata.get(ARCHITECTURE)
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        what = f"unsupported architecture {show(kind, 60)}, {' or '.join(MODEL_TYPES)} is read"
        raise InputError(file.path, what, ARCHITECTURE)
    reader = _Reader(file, kind)
    raw = _gpt2(reader) if kind == "gpt2" else _rotary(reader)
    raw |= FIXED.get(kind, {}) | {"model_type": MODEL_TYPES[kind]}
    reader.check_leftovers(ignore, warnings)
    fields = Hyperparameters({k: v for k, v in raw.items() if v is not None}, file, kind)
    architecture = architecture_of(fields)
    return architecture, architecture.parse(fields, frozenset(), warnings)


class _Reader:
    """The keys of one architecture, remembered as they are looked at."""

    def __init__(self, file: GgufFile, kind: str) -> None:
        self.file, self.kind = file, kind
        self._used: set[str] = set()

    def value(self, name: str) -> Any:
        """Return a single value, or what all items of an array are; None if there is none."""
        key = f"{self.kind}.{name}"
        self._used.add(key)
        found = self.file.metadata.get(key)
        if not isinstance(found, Array):
            return found
        items = self.file.array(key) if found.count <= 65_536 else []
        if not items or any(item != items[0] for item in items):
            what = f"{show(key)} differs between layers, which is not read"
            raise InputError(self.file.path, what, f"found {show(items)}")
        return items[0]

    def number(self, name: str, missing: float | None) -> Any:
        """Return a float32 as the shortest decimal for it: 1e-06, not 9.999999974752427e-07."""
        found = self.value(name)
        if found is None:
            return missing
        return float(str(np.float32(found))) if type(found) is float else found

    def check_widths(self, head_dim: Any, *names: str) -> None:
        """Refuse heads of which these keys give another width than `head_dim`."""
        if type(head_dim) is not int:
            what = f"field {show(f'{self.kind}.attention.key_length')} must be an integer"
            raise InputError(self.file.path, what, f"found {show(head_dim, 40)}")
        for name in names:
            found = self.value(name)
            if found is not None and found != head_dim:
                what = f"field {show(f'{self.kind}.{name}')} must be {show(head_dim, 40)}"
                raise InputError(self.file.path, what, f"found {show(found, 40)}")

    def check_leftovers(self, ignore: Collection[str], warnings: list[str]) -> None:
        own = [key for key in self.file.metadata if key.startswith(f"{self.kind}.")]
        reasons = {f"{self.kind}.{name}" for name in IGNORED}
        unknown = [key for key in own if key not in self._used | reasons]
        refused = [key for key in unknown if key not in ignore and self.file.metadata[key]]
        if refused:
            way = f"pass --ignore-config {show(refused[0], 60)[1:-1]} if it changes nothing"
            what = f"unknown metadata {show_names(refused, 2)}; {way}"
            raise InputError(
                self.file.path, what, f"found {show(self.file.metadata[refused[0]], 40)}"
            )
        if passed := [key for key in unknown if key not in refused]:
            warnings.append(f"unknown metadata ignored: {show_names(passed)}")


def _rotary(reader: _Reader) -> dict[str, Any]:
    """Return the keys of config.json of a model that turns its queries and keys."""
    keys = KEYS | (EXPERT_KEYS if reader.kind == "qwen3moe" else {})
    raw = {key: reader.value(name) for key, name in keys.items()} | {"hidden_act": "silu"}
    raw["rope_theta"] = reader.number("rope.freq_base", USUAL_THETA)
    raw["rms_norm_eps"] = reader.number("attention.layer_norm_rms_epsilon", None)
    raw |= _usual(raw, reader.file) | _switches(reader.file)
    reader.check_widths(raw["head_dim"], "attention.value_length", "rope.dimension_count")
    return raw | {"rope_parameters": _rope(reader, raw)}


def _gpt2(reader: _Reader) -> dict[str, Any]:
    """Return the keys of config.json of GPT-2, which has a table of positions."""
    raw = {key: reader.value(name) for key, name in GPT2_KEYS.items()}
    raw["layer_norm_epsilon"] = reader.number("attention.layer_norm_epsilon", None)
    if raw["vocab_size"] is None and EMBEDDING in reader.file.entries:
        raw["vocab_size"] = reader.file.entries[EMBEDDING].shape[0]
    heads, width = raw["n_head"], raw["n_embd"]
    if type(heads) is int and type(width) is int and heads > 0:
        reader.check_widths(width // heads, "attention.key_length", "attention.value_length")
    return raw | {"tie_word_embeddings": HEAD not in reader.file.entries}


def _usual(raw: dict[str, Any], file: GgufFile) -> dict[str, Any]:
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


def _switches(file: GgufFile) -> dict[str, Any]:
    """Return what the file says by which tensors it has."""
    return {
        "tie_word_embeddings": HEAD not in file.entries,
        "attention_bias": "blk.0.attn_q.bias" in file.entries,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.entries,
    }


def _rope(reader: _Reader, raw: dict[str, Any]) -> dict[str, Any] | None:
    """Return how positions are stretched, in the words of config.json; None if they are not."""
    kind = reader.value("rope.scaling.type")
    factor = reader.number("rope.scaling.factor", None)
    original = reader.value("rope.scaling.original_context_length")
    if FREQUENCIES in reader.file.entries:
        if kind not in (None, PLAIN):
            what = f"both {FREQUENCIES} and the scaling {show(kind, 30)} are given"
            raise InputError(reader.file.path, what)
        return _divided(reader.file, raw)
    if kind in (None, PLAIN):
        return None
    if kind not in (LINEAR, YARN):
        what = f"rope scaling {show(kind, 40)} is not read, {LINEAR} and {YARN} are"
        raise InputError(reader.file.path, what, f"{reader.kind}.rope.scaling.type")
    stretched = {"rope_type": kind, "factor": factor}
    return stretched | ({"original_max_position_embeddings": original} if kind == YARN else {})


def _divided(file: GgufFile, raw: dict[str, Any]) -> dict[str, Any]:
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
