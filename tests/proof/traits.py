"""Where a bug exists, as a question to a subject's config. Settings of a variant are ignored."""

import math
from typing import Any

from tests.proof.registry import Subject

SLIDING, FULL = "sliding_attention", "full_attention"
RMS_NORM = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma4_text")
PLAIN_SCALE = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gpt2")


def anywhere(subject: Subject, **_: Any) -> bool:
    return True


def gemma(subject: Subject, **_: Any) -> bool:
    return subject.config.model_type == "gemma4_text"


def gpt2(subject: Subject, **_: Any) -> bool:
    return subject.config.model_type == "gpt2"


def rope(subject: Subject, **_: Any) -> bool:
    return not gpt2(subject)


def rms_norm(subject: Subject, **_: Any) -> bool:
    return subject.config.model_type in RMS_NORM


def scaled_scores(subject: Subject, **_: Any) -> bool:
    return subject.config.model_type in PLAIN_SCALE


def llama_mlp(subject: Subject, **_: Any) -> bool:
    return rope(subject) and not gemma(subject)


def qk_norm(subject: Subject, **_: Any) -> bool:
    return subject.config.model_type in ("qwen3", "qwen3_moe", "gemma4_text")


def grouped(subject: Subject, **_: Any) -> bool:
    heads = first_layer(subject.config)
    return rope(subject) and 1 < heads.num_key_value_heads < heads.num_attention_heads


def own_head_dim(subject: Subject, **_: Any) -> bool:
    config = subject.config
    return rope(subject) and head_dim(config) != config.hidden_size // config.num_attention_heads


def head_dim(config: Any) -> int:
    given = getattr(first_layer(config), "head_dim", None)
    return given or config.hidden_size // config.num_attention_heads


def first_layer(config: Any) -> Any:
    """Return what holds in layer 0: Gemma's layers differ."""
    return config.per_layer_config[0] if config.model_type == "gemma4_text" else config


def experts(subject: Subject, **_: Any) -> bool:
    return subject.config.model_type == "qwen3_moe" or gemma_experts(subject)


def dense_mlp(subject: Subject, **_: Any) -> bool:
    """Say whether layers have a gated MLP that is no expert; Gemma's sparse ones have both."""
    return rope(subject) and (gemma(subject) or not experts(subject))


def gemma_experts(subject: Subject, **_: Any) -> bool:
    return gemma(subject) and bool(subject.config.enable_moe_block)


def own_inputs(subject: Subject, **_: Any) -> bool:
    """Say whether every layer has an embedding of its own."""
    return gemma(subject) and bool(subject.config.hidden_size_per_layer_input)


def keys_as_values(subject: Subject, **_: Any) -> bool:
    return gemma(subject) and bool(subject.config.attention_k_eq_v)


def shared_keys(subject: Subject, **_: Any) -> bool:
    return gemma(subject) and bool(subject.config.num_kv_shared_layers)


def kinds(config: Any) -> list[str]:
    """Return the kind of every layer. Mistral and GPT-2 have one for all of them."""
    alike = SLIDING if getattr(config, "sliding_window", None) else FULL
    named = getattr(config, "layer_types", None)
    return list(named) if named else [alike] * config.num_hidden_layers


def window(subject: Subject, **_: Any) -> bool:
    return SLIDING in kinds(subject.config)


def both_kinds(subject: Subject, **_: Any) -> bool:
    return len(set(kinds(subject.config))) == 2


def scaling(*names: str) -> Any:
    """Return the question whether positions are stretched in one of these ways."""
    return lambda subject, **_: rope_type(subject) in names


def rope_type(subject: Subject) -> str | None:
    parameters = getattr(subject.config, "rope_parameters", None) or {}
    return parameters.get("rope_type")


def fixed_frequencies(subject: Subject, **_: Any) -> bool:
    """Say whether the frequencies do not depend on the length of the prompt."""
    return rope(subject) and rope_type(subject) not in ("dynamic", "longrope")


def tied(subject: Subject, **_: Any) -> bool:
    return bool(subject.config.tie_word_embeddings)


def untied(subject: Subject, **_: Any) -> bool:
    return not subject.config.tie_word_embeddings


def loaded_as_stored(subject: Subject, **_: Any) -> bool:
    return not subject.packed


def biased(subject: Subject, **_: Any) -> bool:
    return subject.config.model_type in ("qwen2", "gpt2") or all_biased(subject)


def all_biased(subject: Subject, **_: Any) -> bool:
    return bool(getattr(subject.config, "attention_bias", False))


def root_is_rounded(subject: Subject, **_: Any) -> bool:
    """Say whether bfloat16 cannot hold the root of the width: 8 bits of it are kept."""
    mantissa, _exponent = math.frexp(subject.config.hidden_size**0.5)
    return gemma(subject) and mantissa * 256 != round(mantissa * 256)
