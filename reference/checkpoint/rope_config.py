"""The base of the rotary embedding, from either of the two places a config may keep it."""

from __future__ import annotations

from collections.abc import Collection

from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import check_leftovers
from lockstep.reference.checkpoint.errors import InputError

THETA_LIMIT = 1e12
PLAIN = (None, "default", "none")


def rope_theta(fields: Fields, ignore: Collection[str], warnings: list[str]) -> float:
    """Return the base. transformers 5 keeps it in `rope_parameters`, older files at top level.

    Raises InputError if it is missing, out of range, given twice with two values, or if the
    positions are to be scaled.
    """
    found = [_nested(fields, key, ignore, warnings) for key in ("rope_parameters", "rope_scaling")]
    if fields.get("rope_theta") is not None:
        found.append(_theta(fields))
    values = {value for value in found if value is not None}
    if not values:
        fields.refuse("rope_theta", "must be a number, here or in rope_parameters")
    if len(values) > 1:
        listed = " and ".join(f"{value:g}" for value in sorted(values))
        raise InputError(fields.path, f"rope_theta is given twice, as {listed}; keep one of them")
    return values.pop()


def _nested(fields: Fields, key: str, ignore: Collection[str], warnings: list[str]) -> float | None:
    raw = fields.get(key)
    if raw is None:
        return None
    if not isinstance(raw, dict):
        fields.refuse(key, "must be an object or null")
    inner = Fields(raw, fields.path, f"{key}.")
    # Files from before 2024 say "type".
    for name in ("rope_type", "type"):
        kind = inner.get(name)
        if kind is not None and (not isinstance(kind, str) or kind not in PLAIN):
            inner.refuse(name, "asks for a rope scaling that is not supported yet")
    theta = None if inner.get("rope_theta") is None else _theta(inner)
    check_leftovers(inner, ignore, warnings)
    return theta


def _theta(fields: Fields) -> float:
    # Below 1 the frequencies would grow along the head.
    return fields.number("rope_theta", low=1, high=THETA_LIMIT)
