"""The config of a Gemma 4 text model: what a forward pass needs, out of config.json."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lockstep.reference.checkpoint import config_common as common
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import check_leftovers
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_config import THETA_LIMIT

EXPERT_LIMIT = 1 << 14


@dataclass(frozen=True)
class Gemma4Config:
    """What a Gemma 4 forward pass needs to know. Field names are the keys of config.json.

    `head_dim`, `num_key_value_heads` and `rope_theta` are those of sliding layers, `global_` those
    of full ones. `final_logit_softcapping` is None where nothing is capped; without experts their
    numbers are 0, and without inputs of their own layers have `hidden_size_per_layer_input` 0.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    global_head_dim: int
    num_global_key_value_heads: int
    attention_k_eq_v: bool
    rms_norm_eps: float
    rope_theta: float
    global_rope_theta: float
    partial_rotary_factor: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    sliding_window: int
    layer_types: tuple[str, ...]
    final_logit_softcapping: float | None
    enable_moe_block: bool
    num_experts: int
    top_k_experts: int
    moe_intermediate_size: int
    hidden_size_per_layer_input: int
    vocab_size_per_layer_input: int
    num_kv_shared_layers: int
    use_double_wide_mlp: bool

    def is_full(self, layer: int) -> bool:
        return self.layer_types[layer] == common.FULL

    def heads_of(self, layer: int) -> tuple[int, int]:
        """Return how many key/value heads a layer has, and how wide its heads are."""
        if self.is_full(layer):
            return self.num_global_key_value_heads, self.global_head_dim
        return self.num_key_value_heads, self.head_dim

    def owns_keys(self, layer: int) -> bool:
        """Tell whether a layer makes keys and values, or takes those of an earlier one."""
        return layer < self.num_hidden_layers - self.num_kv_shared_layers

    def has_values(self, layer: int) -> bool:
        """Tell whether a layer projects its values, or takes them from the keys."""
        return not (self.attention_k_eq_v and self.is_full(layer))

    def inner_width(self, layer: int) -> int:
        """Return the width of a layer's MLP: double in layers without keys, if the config says."""
        double = self.use_double_wide_mlp and not self.owns_keys(layer)
        return self.intermediate_size * (2 if double else 1)

    @property
    def cached_per_token(self) -> int:
        """How many numbers a cache holds for one token, keys and values of all layers."""
        owning = filter(self.owns_keys, range(self.num_hidden_layers))
        return sum(2 * groups * width for groups, width in map(self.heads_of, owning))

    @property
    def widest_head(self) -> int:
        return max(self.head_dim, self.global_head_dim)

    @property
    def widest_mlp(self) -> int:
        return self.inner_width(self.num_hidden_layers - 1)


def parse(fields: Fields, ignore: Collection[str], warnings: list[str]) -> Gemma4Config:
    """Return the config, or raise InputError for the first key that is wrong.

    Engines take different things where a key of Gemma 4 is absent, so most are required.
    """
    layers = fields.integer("num_hidden_layers", low=1, high=common.LAYER_LIMIT)
    kinds = _layer_types(fields, layers, warnings)
    _check_variants(fields)
    theta, global_theta, part = _ropes(fields, ignore, warnings)
    heads = fields.integer("num_attention_heads", low=1, high=common.HEAD_LIMIT)
    own = (
        fields.integer("num_key_value_heads", low=1, high=common.HEAD_LIMIT),
        _even(fields, "head_dim"),
    )
    k_eq_v = fields.boolean("attention_k_eq_v")
    groups, wide = _global_heads(fields, ignore, warnings, own, kinds, k_eq_v)
    for count in (own[0], groups):
        common.check_heads(fields, heads, count)
    experts = fields.boolean("enable_moe_block")
    count, chosen, inner = _experts(fields) if experts else _no_experts(fields)
    extra = fields.integer("hidden_size_per_layer_input", low=0, high=common.WIDTH_LIMIT)
    vocabulary = fields.integer("vocab_size", low=1, high=common.VOCAB_LIMIT)
    return Gemma4Config(
        vocab_size=vocabulary,
        hidden_size=common.width(fields, "hidden_size"),
        intermediate_size=common.width(fields, "intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=own[0],
        head_dim=own[1],
        global_head_dim=wide,
        num_global_key_value_heads=groups,
        attention_k_eq_v=k_eq_v,
        rms_norm_eps=common.eps(fields, "rms_norm_eps", warnings),
        rope_theta=theta,
        global_rope_theta=global_theta,
        partial_rotary_factor=part,
        tie_word_embeddings=fields.boolean_or("tie_word_embeddings", True),
        max_position_embeddings=fields.integer(
            "max_position_embeddings", low=1, high=common.POSITION_LIMIT
        ),
        sliding_window=fields.integer("sliding_window", low=1, high=common.POSITION_LIMIT),
        layer_types=kinds,
        final_logit_softcapping=_cap(fields),
        enable_moe_block=experts,
        num_experts=count,
        top_k_experts=chosen,
        moe_intermediate_size=inner,
        hidden_size_per_layer_input=extra,
        vocab_size_per_layer_input=_second_vocabulary(fields, extra, vocabulary),
        num_kv_shared_layers=_shared(fields, kinds),
        use_double_wide_mlp=fields.boolean("use_double_wide_mlp"),
    )


def _layer_types(fields: Fields, layers: int, warnings: list[str]) -> tuple[str, ...]:
    """Return the kind of each layer. transformers and mlx-lm differ where none is listed."""
    kinds = common.layer_types(fields, layers)
    if kinds is None:
        fields.refuse("layer_types", f"must list {layers} layers, as num_hidden_layers says")
    if kinds[-1] != common.FULL:
        warnings.append("the last layer is full, whatever layer_types says, as in transformers")
    return (*kinds[:-1], common.FULL)


def _check_variants(fields: Fields) -> None:
    common.check_dtype(fields)
    fields.choice("hidden_activation", ("gelu_pytorch_tanh",))
    if fields.boolean_or("attention_bias", False):
        fields.refuse("attention_bias", "must be false: no Gemma 4 has biases")
    if fields.get("use_bidirectional_attention") not in (None, "vision"):
        fields.refuse("use_bidirectional_attention", "must be null or 'vision': text is causal")


def _even(fields: Fields, key: str) -> int:
    value = fields.integer(key, low=2, high=common.HEAD_LIMIT)
    if value % 2:
        fields.refuse(key, "is odd: rotary embedding needs pairs")
    return value


def _ropes(
    fields: Fields, ignore: Collection[str], warnings: list[str]
) -> tuple[float, float, float]:
    """Return the base of sliding layers, that of full layers, and which part of these turns."""
    outer = _object(fields, "rope_parameters")
    found = {}
    for kind, wanted in ((common.SLIDING, "default"), (common.FULL, "proportional")):
        inner = _object(outer, kind)
        inner.choice("rope_type", (wanted,))
        found[kind] = inner.number("rope_theta", low=1, high=THETA_LIMIT)
        if kind == common.FULL:
            part = inner.number("partial_rotary_factor", low=0, high=1)
        check_leftovers(inner, ignore, warnings)
    check_leftovers(outer, ignore, warnings)
    return found[common.SLIDING], found[common.FULL], part


def _object(fields: Fields, key: str) -> Fields:
    raw = fields.get(key)
    if not isinstance(raw, dict):
        fields.refuse(key, "must be an object")
    return Fields(raw, fields.path, f"{fields.prefix}{key}.")


def _global_heads(
    fields: Fields, ignore: Collection[str], warnings: list[str],
    own: tuple[int, int], kinds: tuple[str, ...], k_eq_v: bool,
) -> tuple[int, int]:  # fmt: skip
    """Return how many key/value heads full layers have, and how wide their heads are.

    Published files say so in two keys; transformers 5 writes what differs for each layer.
    """
    each = fields.get("per_layer_config")
    if each is None:
        wide = _even(fields, "global_head_dim")
        said = fields.optional_integer("num_global_key_value_heads", low=1, high=common.HEAD_LIMIT)
        return (said if k_eq_v and said is not None else own[0]), wide
    outer = _object(fields, "per_layer_config")
    full = [str(layer) for layer, kind in enumerate(kinds) if kind == common.FULL]
    if not set(outer.raw) <= set(full):
        fields.refuse("per_layer_config", "must have full layers, and no other")
    listed = {
        _layer_heads(_object(outer, layer), ignore, warnings, own) if layer in outer.raw else own
        for layer in full
    }
    if len(listed) > 1:
        fields.refuse("per_layer_config", "must say the same of all full layers")
    found = listed.pop()
    keys = ("num_global_key_value_heads", "global_head_dim")
    for key, value in zip(keys, found, strict=True):
        if fields.get(key) not in (None, value):
            fields.refuse(key, f"must be {value}, as in per_layer_config")
    return found


def _layer_heads(
    layer: Fields, ignore: Collection[str], warnings: list[str], own: tuple[int, int]
) -> tuple[int, int]:
    groups = layer.optional_integer("num_key_value_heads", low=1, high=common.HEAD_LIMIT)
    wide = own[1] if layer.get("head_dim") is None else _even(layer, "head_dim")
    check_leftovers(layer, ignore, warnings)
    return groups or own[0], wide


def _cap(fields: Fields) -> float | None:
    """Return what logits are capped at. Where the key is absent mlx-lm takes 30, so it must be."""
    if "final_logit_softcapping" not in fields.raw:
        fields.refuse("final_logit_softcapping", "must be a number or null")
    return fields.optional_number("final_logit_softcapping", low=1e-3, high=1e6)


def _experts(fields: Fields) -> tuple[int, int, int]:
    count = fields.integer("num_experts", low=1, high=EXPERT_LIMIT)
    chosen = fields.integer("top_k_experts", low=1, high=EXPERT_LIMIT)
    if chosen > count:
        raise InputError(fields.path, f"top_k_experts={chosen}, but num_experts={count}")
    return count, chosen, common.width(fields, "moe_intermediate_size")


def _no_experts(fields: Fields) -> tuple[int, int, int]:
    for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        fields.get(key)  # nothing reads it without enable_moe_block
    return 0, 0, 0


def _second_vocabulary(fields: Fields, extra: int, vocabulary: int) -> int:
    """Return how many rows the table of the layers' own inputs has; it must cover all tokens."""
    said = fields.optional_integer("vocab_size_per_layer_input", low=1, high=common.VOCAB_LIMIT)
    if extra and (said is None or said < vocabulary):
        fields.refuse("vocab_size_per_layer_input", f"must be at least vocab_size={vocabulary}")
    return said if said is not None and extra else 0


def _shared(fields: Fields, kinds: tuple[str, ...]) -> int:
    """Return how many of the last layers have no keys; each kind needs an owner before them."""
    count = fields.integer("num_kv_shared_layers", low=0, high=len(kinds) - 1)
    if not set(kinds[len(kinds) - count :]) <= set(kinds[: len(kinds) - count]):
        fields.refuse(
            "num_kv_shared_layers", "must leave a layer of each kind with keys of its own"
        )
    return count
