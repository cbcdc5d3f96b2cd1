"""Keys of config.json that several architectures share."""

from __future__ import annotations

from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.errors import InputError, show

FULL, SLIDING = "full_attention", "sliding_attention"
STORED_DTYPES = ("float64", "float32", "float16", "bfloat16")

# Far beyond any published model, small enough that no product of them is a surprise.
WIDTH_LIMIT = 1 << 20
VOCAB_LIMIT = 1 << 24
LAYER_LIMIT = 10_000
HEAD_LIMIT = 1 << 16
POSITION_LIMIT = (1 << 31) - 1


def width(fields: Fields, key: str) -> int:
    return fields.integer(key, low=1, high=WIDTH_LIMIT)


def eps(fields: Fields, key: str, warnings: list[str]) -> float:
    """Return what is added under the root of a norm."""
    value = fields.number(key, low=0, high=1)
    if value == 0:
        warnings.append(f"{key} is 0: a row of zeros gives NaN")
    return value


def check_dtype(fields: Fields) -> None:
    """Check the announced dtype. It is not used: each tensor's own dtype is in its file."""
    for key in ("dtype", "torch_dtype"):
        if fields.get(key) is not None:
            fields.choice(key, STORED_DTYPES)


def layer_types(fields: Fields, layers: int) -> tuple[str, ...] | None:
    """Return which layers slide as the config lists them, None if it does not."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        fields.refuse("layer_types", f"must list {layers} layers, as num_hidden_layers says")
    if any(kind not in (FULL, SLIDING) for kind in kinds):
        fields.refuse("layer_types", f"may hold {show(FULL)} and {show(SLIDING)} only")
    return tuple(kinds)


def window_by_depth(
    fields: Fields, layers: int, warnings: list[str]
) -> tuple[int | None, tuple[str, ...]]:
    """Resolve which layers slide in Qwen's models, and how wide their window is.

    As in transformers: without `use_sliding_window` there is no window, whatever else is said; and
    `layer_types`, where given, decides over `max_window_layers`.
    """
    use = fields.boolean_or("use_sliding_window", False)
    said = fields.optional_integer("sliding_window", low=1, high=POSITION_LIMIT)
    window = said if use else None
    by_rule = _kinds_by_depth(fields, layers, window)
    kinds = layer_types(fields, layers) or by_rule
    if SLIDING in kinds and window is None:
        fields.refuse("layer_types", "has sliding layers, but there is no sliding window")
    if kinds != by_rule:
        warnings.append("layer_types differs from max_window_layers: layer_types was followed")
    return (window if SLIDING in kinds else None), kinds


def _kinds_by_depth(fields: Fields, layers: int, window: int | None) -> tuple[str, ...]:
    first = fields.optional_integer("max_window_layers", low=0, high=POSITION_LIMIT)
    if window is None:
        return (FULL,) * layers
    if first is None:
        fields.refuse("max_window_layers", "must be an integer: it says which layers slide")
    return tuple(SLIDING if layer >= first else FULL for layer in range(layers))


def check_heads(fields: Fields, heads: int, groups: int) -> None:
    """Refuse query heads that do not share key heads evenly."""
    if heads % groups:
        what = f"num_attention_heads={heads} is not a multiple of num_key_value_heads={groups}"
        raise InputError(fields.path, what)
