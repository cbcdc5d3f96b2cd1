"""config.json of a Qwen3 model, parsed strictly.

Every key is used, ignored for a reason that `config_keys.IGNORED` gives, or refused by name.
Nothing that changes a number has a default that only one engine knows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import check_ignore, check_leftovers
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.rope_config import rope_theta
from lockstep.reference.checkpoint.strict_json import JsonLimits, read_json_object

CONFIG = "config.json"
CONFIG_LIMITS = JsonLimits(size=1 << 20, entries=100_000, depth=16)
ARCHITECTURE, CLASS = "qwen3", "Qwen3ForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
STORED_DTYPES = ("float64", "float32", "float16", "bfloat16")

# Far beyond any published model, small enough that no product of them is a surprise.
WIDTH_LIMIT = 1 << 20
VOCAB_LIMIT = 1 << 24
LAYER_LIMIT = 10_000
HEAD_LIMIT = 1 << 16
POSITION_LIMIT = (1 << 31) - 1


@dataclass(frozen=True)
class Qwen3Config:
    """What a Qwen3 forward pass needs to know. Field names are the keys of config.json.

    `layer_types` holds "full_attention" or "sliding_attention" for each layer; `sliding_window` is
    None unless some layer slides.
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
    tie_word_embeddings: bool
    attention_bias: bool
    max_position_embeddings: int
    sliding_window: int | None
    layer_types: tuple[str, ...]


@dataclass(frozen=True)
class ParsedConfig:
    """A config, what config.json says of quantisation and of the last token, and warnings."""

    config: Qwen3Config
    path: Path
    quantization: Any
    quantization_config: Any
    eos_token_id: Any
    warnings: list[str]


def read_config(path: Path, *, ignore: Collection[str]) -> ParsedConfig:
    """Read config.json. Raises InputError naming the first key that is wrong or unknown."""
    raw = read_json_object(path, subject="config", limits=CONFIG_LIMITS)
    fields, warnings = Fields(raw, path), []
    _check_architecture(fields)
    config = _config(fields, ignore, warnings)
    _check_consistent(config, path)
    quantization = fields.get("quantization"), fields.get("quantization_config")
    eos = fields.get("eos_token_id")
    check_ignore(ignore, fields.used, fields)
    check_leftovers(fields, ignore, warnings)
    return ParsedConfig(config, path, *quantization, eos, warnings)


def _check_architecture(fields: Fields) -> None:
    model_type = fields.get("model_type")
    if model_type != ARCHITECTURE:
        fields.refuse("model_type", f"names an unsupported architecture, {ARCHITECTURE} is read")
    classes = fields.get("architectures")
    if classes is not None and classes != [CLASS]:
        fields.refuse("architectures", f"names an unsupported architecture, {CLASS} is read")


def _config(fields: Fields, ignore: Collection[str], warnings: list[str]) -> Qwen3Config:
    layers = fields.integer("num_hidden_layers", low=1, high=LAYER_LIMIT)
    window, layer_types = _attention_kinds(fields, layers, warnings)
    fields.choice("hidden_act", ("silu",))
    _check_dtype(fields)
    return Qwen3Config(
        vocab_size=fields.integer("vocab_size", low=1, high=VOCAB_LIMIT),
        hidden_size=fields.integer("hidden_size", low=1, high=WIDTH_LIMIT),
        intermediate_size=fields.integer("intermediate_size", low=1, high=WIDTH_LIMIT),
        num_hidden_layers=layers,
        num_attention_heads=fields.integer("num_attention_heads", low=1, high=HEAD_LIMIT),
        num_key_value_heads=fields.integer("num_key_value_heads", low=1, high=HEAD_LIMIT),
        head_dim=fields.integer("head_dim", low=2, high=HEAD_LIMIT),
        rms_norm_eps=_eps(fields, warnings),
        rope_theta=rope_theta(fields, ignore, warnings),
        tie_word_embeddings=fields.boolean("tie_word_embeddings"),
        # The tensors confirm it: a bias that is there and not announced is an unknown tensor.
        attention_bias=fields.boolean_or("attention_bias", False),
        max_position_embeddings=fields.integer(
            "max_position_embeddings", low=1, high=POSITION_LIMIT
        ),
        sliding_window=window,
        layer_types=layer_types,
    )


def _eps(fields: Fields, warnings: list[str]) -> float:
    eps = fields.number("rms_norm_eps", low=0, high=1)
    if eps == 0:
        warnings.append("rms_norm_eps is 0: a row of zeros gives NaN")
    return eps


def _check_dtype(fields: Fields) -> None:
    """Check the announced dtype. It is not used: each tensor's own dtype is in its file."""
    for key in ("dtype", "torch_dtype"):
        if fields.get(key) is not None:
            fields.choice(key, STORED_DTYPES)


def _attention_kinds(
    fields: Fields, layers: int, warnings: list[str]
) -> tuple[int | None, tuple[str, ...]]:
    """Resolve which layers slide, and how wide their window is.

    As in transformers: without `use_sliding_window` there is no window, whatever else is said; and
    `layer_types`, where given, decides over `max_window_layers`.
    """
    use = fields.boolean_or("use_sliding_window", False)
    said = fields.optional_integer("sliding_window", low=1, high=POSITION_LIMIT)
    window = said if use else None
    by_rule = _kinds_by_rule(fields, layers, window)
    kinds = _layer_types(fields, layers) or by_rule
    if SLIDING in kinds and window is None:
        fields.refuse("layer_types", "has sliding layers, but there is no sliding window")
    if kinds != by_rule:
        warnings.append("layer_types differs from max_window_layers: layer_types was followed")
    return (window if SLIDING in kinds else None), kinds


def _kinds_by_rule(fields: Fields, layers: int, window: int | None) -> tuple[str, ...]:
    first = fields.optional_integer("max_window_layers", low=0, high=POSITION_LIMIT)
    if window is None:
        return (FULL,) * layers
    if first is None:
        fields.refuse("max_window_layers", "must be an integer: it says which layers slide")
    return tuple(SLIDING if layer >= first else FULL for layer in range(layers))


def _layer_types(fields: Fields, layers: int) -> tuple[str, ...] | None:
    kinds = fields.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        fields.refuse("layer_types", f"must list {layers} layers, as num_hidden_layers says")
    if any(kind not in (FULL, SLIDING) for kind in kinds):
        fields.refuse("layer_types", f"may hold {show(FULL)} and {show(SLIDING)} only")
    return tuple(kinds)


def _check_consistent(config: Qwen3Config, path: Path) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        what = f"num_attention_heads={config.num_attention_heads} is not a multiple of "
        raise InputError(path, what + f"num_key_value_heads={config.num_key_value_heads}")
    if config.head_dim % 2:
        what = f"head_dim={config.head_dim} is odd: rotary embedding needs pairs"
        raise InputError(path, what)
