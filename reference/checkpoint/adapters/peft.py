"""Adapters as PEFT saves them: `adapter_model.safetensors` and `adapter_config.json`.

The scale: `lora_alpha / r`, or `lora_alpha / sqrt(r)` with `use_rslora`, where `rank_pattern` and
`alpha_pattern` may give a module an `r` and an alpha of its own. It is divided here, once; what
leaves this file is the whole factor.

`lora_A.weight` is (rank, inputs) and `lora_B.weight` (outputs, rank), also where the base stores
its matrix the other way round (`fan_in_fan_out`, which says only that). Of an embedding,
`lora_embedding_A` is (rank, tokens) and `lora_embedding_B` (width, rank): the table is transposed.
Of a stack of experts, `lora_A.weight` has the ranks of one expert after those of another, and in
the columns of `lora_B.weight` the experts alternate: (rank * experts, inputs), (outputs, rank *
experts). The factor is the same for all: alpha by the rank of one expert.

A tied head takes no part in what the embedding learned, nor the embedding in what the head did:
PEFT runs them as two from there on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.adapters.homes import Form, Home
from lockstep.reference.checkpoint.adapters.placing import Layout, Part, Rules
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import check_leftovers
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.strict_json import JsonLimits, read_json_object

LIMITS = JsonLimits(size=1 << 20, entries=10_000, depth=16)
RANK_LIMIT, ALPHA_LIMIT, PATTERN_LIMIT = 1 << 16, 1e6, 256
TENSOR = re.compile(
    r"base_model\.model\.(.+?)\.(lora_(?:A|B|magnitude_vector)\.weight|lora_embedding_[AB]"
    r"|lora_magnitude_vector|(?:base_layer\.)?weight)"
)
PARTS: dict[str, Part] = {
    "lora_A": "a", "lora_B": "b", "lora_embedding_A": "a", "lora_embedding_B": "b",
    "lora_magnitude_vector": "magnitude", "weight": "weight", "base_layer": "base",
}  # fmt: skip
TIES = False  # a tied head and the embedding learn apart


def _split_experts(a: Any, b: Any, home: Home) -> tuple[Any, Any]:
    count, outputs, inputs = home.shape
    return a.reshape(count, -1, inputs), b.reshape(outputs, -1, count).transpose(2, 0, 1)


LAYOUTS: dict[Form, Layout] = {
    "projection": Layout(lambda r, s: ((r, s[1]), (s[0], r)), lambda a, b, home: (a, b)),
    "table": Layout(lambda r, s: ((r, s[0]), (s[1], r)), lambda a, b, home: (b.T, a.T)),
    "experts": Layout(lambda r, s: ((r * s[0], s[2]), (s[1], r * s[0])), _split_experts),
}
# What a key of a pattern may be made of: names and numbers. A regular expression can be made to
# take longer than the universe has, and this one comes from a file.
PATTERN = re.compile(r"\^?(?:[A-Za-z0-9_.]|\\\.|\\d\+?|\[0-9\]\+?)+\$?")
# They say where the adapter came from, how it was trained, or what the tensors' names say too.
IGNORED = (
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
    "inference_mode", "target_modules", "exclude_modules", "lora_dropout", "fan_in_fan_out",
    "layers_to_transform", "layers_pattern", "megatron_core", "qalora_group_size", "runtime_config",
    "ensure_weight_tying", "loftq_config", "target_parameters",
)  # fmt: skip
# Each changes the arithmetic or the base in a way that is not read.
MUST_BE_OFF = (
    "megatron_config", "trainable_token_indices", "eva_config", "corda_config",
    "lora_ga_config", "velora_config", "alora_invocation_tokens", "use_qalora", "monteclora_config",
    "layer_replication", "lora_bias", "use_bdlora", "arrow_config",
    "kasa_config",
)  # fmt: skip
# The others take a part of the base's own weights away, so that a plain base is the wrong one.
INITIALISED = (True, False, None, "gaussian", "orthogonal")


def read_rules(path: Path, ignore: Collection[str], warnings: list[str]) -> Rules:
    """Read adapter_config.json. Raises InputError naming the first key that is wrong or unknown."""
    fields = Fields(read_json_object(path, subject="adapter config", limits=LIMITS), path)
    fields.choice("peft_type", ("LORA",))
    _check_off(fields)
    scaling = Scaling(
        rank=fields.integer("r", low=1, high=RANK_LIMIT),
        alpha=fields.number("lora_alpha", low=1 / ALPHA_LIMIT, high=ALPHA_LIMIT),
        ranks=_patterns(fields, "rank_pattern", whole=True),
        alphas=_patterns(fields, "alpha_pattern", whole=False),
        by_root=fields.boolean_or("use_rslora", False),
    )
    dora = fields.boolean_or("use_dora", False)
    saved = _names(fields, "modules_to_save")
    check_leftovers(fields, ignore, warnings, IGNORED)
    return Rules(scaling.rank_of, scaling.of, dora, LAYOUTS, saved)


def part_of(name: str) -> tuple[str, Part] | None:
    """Take a tensor's name apart: `base_model.model.model.layers.0.mlp.up_proj.lora_A.weight`."""
    found = TENSOR.fullmatch(name)
    return None if found is None else (found[1], PARTS[found[2].removesuffix(".weight")])


def _names(fields: Fields, key: str) -> tuple[str, ...]:
    raw = fields.get(key)
    if raw is None:
        return ()
    if not isinstance(raw, list) or not all(isinstance(one, str) for one in raw):
        fields.refuse(key, "must be a list of names")
    return tuple(raw)


@dataclass(frozen=True)
class Scaling:
    """The rank and the alpha of every module."""

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    by_root: bool

    def rank_of(self, module: str) -> int:
        return _of_pattern(self.ranks, module, self.rank)

    def of(self, module: str) -> float:
        """Return the whole factor of a module: the one place where alpha is divided."""
        rank, alpha = self.rank_of(module), _of_pattern(self.alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self.by_root else alpha / rank


def _of_pattern(patterns: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """Return the value of the first pattern that fits the end of a module's path, as PEFT does."""
    for pattern, value in patterns.items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return otherwise


def _patterns(fields: Fields, key: str, *, whole: bool) -> Mapping[str, Any]:
    raw = fields.get(key)
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        fields.refuse(key, "must be an object of patterns")
    inner = Fields(raw, fields.path, f"{key}.")
    for pattern in raw:
        if len(pattern) > PATTERN_LIMIT or not PATTERN.fullmatch(pattern):
            what = f"{key} has the pattern {show(pattern)}: names, digits, dots, \\d+ and ^$ only"
            raise InputError(fields.path, what)
    if whole:
        return {pattern: inner.integer(pattern, low=1, high=RANK_LIMIT) for pattern in raw}
    low, high = 1 / ALPHA_LIMIT, ALPHA_LIMIT
    return {pattern: inner.number(pattern, low=low, high=high) for pattern in raw}


def _check_off(fields: Fields) -> None:
    for key in MUST_BE_OFF:
        if fields.get(key) not in (None, False, [], {}):
            fields.refuse(key, "is not supported: it must be null or false")
    if fields.get("bias") not in (None, "none"):
        fields.refuse("bias", "is not supported: it must be 'none'")
    start = fields.get("init_lora_weights")
    if start not in INITIALISED:
        demand = "changes the base's weights: save the adapter converted, then it is true"
        fields.refuse("init_lora_weights", demand)
