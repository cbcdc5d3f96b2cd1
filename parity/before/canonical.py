"""Bring a config.json into one spelling, so that two of them can be compared key by key."""

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from lockstep.parity.before.config_keys import SAME_VALUES, SPELLINGS

KINDS = ("full_attention", "sliding_attention")
# Where the numbers of rope may be kept, and quantisation.
ROPE, QUANTIZATION = ("rope_scaling", "rope_parameters"), ("quantization", "quantization_config")


def canonical(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return key -> value in one spelling: the text model's own keys, rope's numbers flat."""
    inner = raw.get("text_config")
    merged = {**raw, **inner} if isinstance(inner, Mapping) else dict(raw)
    merged.pop("text_config", None)
    found: dict[str, Any] = {}
    for key, value in merged.items():
        if key in ROPE:
            found |= rope(value)
        elif key in QUANTIZATION:
            found |= {"quantization": value} if value else {}
        else:
            name = SPELLINGS.get(key, key)
            if value is not None or name not in found:
                found[name] = value
    return found


def rope(value: Any) -> dict[str, Any]:
    """Return the numbers of a rope section; those of one kind of layer carry its name."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if not isinstance(value, Mapping):
        return {}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if key in KINDS and isinstance(inner, Mapping):
            found |= {f"{name}[{key}]": one for name, one in rope(inner).items()}
        elif inner is not None:
            found["rope_type" if key == "type" else key] = inner
    return found


def same(value: Any) -> Any:
    return SAME_VALUES.get(value, value) if isinstance(value, str) else value


def as_json(value: Any) -> Any:
    """Return tuples as lists, as a file would have them."""
    if isinstance(value, tuple | list):
        return [as_json(one) for one in value]
    return value


def equal(left: Any, right: Any) -> bool:
    """Compare values as JSON means them: 1 and 1.0 are one number, 1 and true are not."""
    left, right = as_json(same(left)), as_json(same(right))
    numbers = (int, float)
    if type(left) in numbers and type(right) in numbers:
        return left == right
    return type(left) is type(right) and left == right
