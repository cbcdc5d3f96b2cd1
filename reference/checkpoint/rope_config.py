"""The rotary embedding of a config: its base and its scaling, from any of the places it is kept.

transformers 5 keeps both in `rope_parameters`; older files have `rope_theta` at the top level and
the scaling in `rope_scaling`, whose `rope_type` was once called `type`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import check_leftovers
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import RopeScaling

THETA_LIMIT, FACTOR_LIMIT, POSITION_LIMIT = 1e12, 1e6, (1 << 31) - 1
PLAIN = (None, "default", "none")
ORIGINAL = "original_max_position_embeddings"

Reader = Callable[[Fields, Fields, list[str]], RopeScaling]


def read_rope(
    fields: Fields,
    ignore: Collection[str],
    warnings: list[str],
    *,
    dims: int,
    theta: float | None = None,
) -> tuple[float, RopeScaling]:
    """Return the base and the scaling of heads of `dims` numbers.

    `theta` is the base where the config has none and every engine takes the same; None refuses.
    Raises InputError if something is missing, out of range, or given twice with two values.
    """
    if dims % 2:
        what = f"head_dim={dims} is odd: rotary embedding needs pairs"
        raise InputError(fields.path, what)
    thetas, scalings = set(), set()
    for key in ("rope_parameters", "rope_scaling"):
        if (inner := _object(fields, key)) is not None:
            thetas |= {_theta(inner)}
            scalings |= {_scaling(inner, fields, warnings)}
            check_leftovers(inner, ignore, warnings)
    thetas = (thetas | {_theta(fields)}) - {None}
    if len(scalings) > 1:
        kinds = "rope_parameters and rope_scaling"
        raise InputError(fields.path, f"{kinds} ask for two different scalings; keep one of them")
    base = _one_theta(thetas, theta, fields)
    scaling = scalings.pop() if scalings else RopeScaling()
    _check_fit(scaling, base, dims, fields)
    return base, scaling


def _object(fields: Fields, key: str) -> Fields | None:
    raw = fields.get(key)
    if raw is None:
        return None
    if not isinstance(raw, dict):
        fields.refuse(key, "must be an object or null")
    return Fields(raw, fields.path, f"{key}.")


def _theta(fields: Fields) -> float | None:
    # Below 1 the frequencies would grow along the head.
    return fields.optional_number("rope_theta", low=1, high=THETA_LIMIT)


def _one_theta(found: set[float | None], missing: float | None, fields: Fields) -> float:
    values = sorted(value for value in found if value is not None)
    if len(values) > 1:
        listed = " and ".join(f"{value:g}" for value in values)
        raise InputError(fields.path, f"rope_theta is given twice, as {listed}; keep one of them")
    if not values and missing is None:
        fields.refuse("rope_theta", "must be a number, here or in rope_parameters")
    return values[0] if values else float(missing or 0)


def _scaling(inner: Fields, fields: Fields, warnings: list[str]) -> RopeScaling:
    """Read what an object says of the kind that it names."""
    kinds = {}
    for name in ("rope_type", "type"):
        kind = inner.get(name)
        if kind is not None and (not isinstance(kind, str) or kind not in (*PLAIN, *READERS)):
            inner.refuse(name, f"must be one of default, {', '.join(READERS)}")
        kinds[name] = kind
    if None not in kinds.values() and kinds["type"] != kinds["rope_type"]:
        inner.refuse("type", "must be what rope_type is")
    kind = kinds["rope_type"] or kinds["type"]
    return RopeScaling() if kind in PLAIN else READERS[kind](inner, fields, warnings)


def _linear(inner: Fields, fields: Fields, warnings: list[str]) -> RopeScaling:
    return RopeScaling("linear", factor=_factor(inner))


def _dynamic(inner: Fields, fields: Fields, warnings: list[str]) -> RopeScaling:
    positions = fields.integer("max_position_embeddings", low=1, high=POSITION_LIMIT)
    return RopeScaling("dynamic", factor=_factor(inner), original_max_position_embeddings=positions)


def _llama3(inner: Fields, fields: Fields, warnings: list[str]) -> RopeScaling:
    low, high = (
        inner.number(f"{end}_freq_factor", low=1e-6, high=FACTOR_LIMIT) for end in ("low", "high")
    )
    if low >= high:
        inner.refuse("high_freq_factor", f"must be above low_freq_factor, {low:g}")
    return RopeScaling(
        "llama3",
        factor=_factor(inner),
        original_max_position_embeddings=_original(inner, fields),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(inner: Fields, fields: Fields, warnings: list[str]) -> RopeScaling:
    factor = _factor(inner)
    given = inner.optional_number("attention_factor", low=0, high=FACTOR_LIMIT)
    inferred = _yarn_attention_factor(inner, factor, warnings)
    return RopeScaling(
        "yarn",
        factor=factor,
        original_max_position_embeddings=_original(inner, fields),
        # Every engine takes these where they are absent.
        beta_fast=_number_or(inner, "beta_fast", 32.0),
        beta_slow=_number_or(inner, "beta_slow", 1.0),
        truncate=inner.boolean_or("truncate", True),
        attention_factor=inferred if given is None else given,
        lone_mscale=_lone_mscale(inner),
    )


def _lone_mscale(inner: Fields) -> float | None:
    above, below = (inner.get(name) for name in ("mscale", "mscale_all_dim"))
    return above if above and not below else None


def _yarn_attention_factor(inner: Fields, factor: float, warnings: list[str]) -> float:
    """Work out what multiplies cosines and sines: Peng et al. 2023, section 3.4.

    As in transformers, `mscale` and `mscale_all_dim` count only together.
    """
    names = ("mscale", "mscale_all_dim")
    above, below = (inner.optional_number(name, low=0, high=FACTOR_LIMIT) for name in names)
    growth = 0.1 * math.log(factor)
    if above and below:
        return (above * growth + 1) / (below * growth + 1)
    if above or below:
        warnings.append("mscale counts only together with mscale_all_dim: it was ignored")
    return growth + 1


def _longrope(inner: Fields, fields: Fields, warnings: list[str]) -> RopeScaling:
    original = _original(inner, fields, low=2)  # its logarithm divides
    factor = inner.optional_number("factor", low=1, high=FACTOR_LIMIT)
    if factor is None:
        longest = fields.integer("max_position_embeddings", low=1, high=POSITION_LIMIT)
        factor = max(longest / original, 1.0)
    given = inner.optional_number("attention_factor", low=0, high=FACTOR_LIMIT)
    inferred = math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeScaling(
        "longrope",
        factor=factor,
        original_max_position_embeddings=original,
        short_factor=_divisors(inner, "short_factor"),
        long_factor=_divisors(inner, "long_factor"),
        attention_factor=inferred if given is None else given,
    )


READERS: dict[str, Reader] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _factor(inner: Fields) -> float:
    return inner.number("factor", low=1, high=FACTOR_LIMIT)


def _number_or(inner: Fields, key: str, usual: float) -> float:
    given = inner.optional_number(key, low=1e-6, high=FACTOR_LIMIT)
    return usual if given is None else given


def _original(inner: Fields, fields: Fields, *, low: int = 1) -> int:
    """Return the length before stretching; Phi's files have it at the top level.

    Where it is absent transformers takes `max_position_embeddings` and mlx-lm a constant.
    """
    top = fields.optional_integer(ORIGINAL, low=low, high=POSITION_LIMIT)
    if top is None:
        return inner.integer(ORIGINAL, low=low, high=POSITION_LIMIT)
    if inner.optional_integer(ORIGINAL, low=low, high=POSITION_LIMIT) not in (None, top):
        inner.refuse(ORIGINAL, f"must be {top}, as at the top level")
    return top


def _divisors(inner: Fields, key: str) -> tuple[float, ...]:
    values = inner.get(key)
    if not isinstance(values, list) or any(type(one) not in (int, float) for one in values):
        inner.refuse(key, "must be a list of numbers")
    if not all(0 < one <= FACTOR_LIMIT for one in values):
        inner.refuse(key, f"must hold numbers above 0, up to {FACTOR_LIMIT:g}")
    return tuple(map(float, values))


def _check_fit(scaling: RopeScaling, theta: float, dims: int, fields: Fields) -> None:
    """Refuse numbers that do not fit the heads or the base."""
    if scaling.rope_type == "yarn" and theta == 1:
        raise InputError(fields.path, "rope_theta=1, but yarn divides by its logarithm")
    if scaling.rope_type == "dynamic" and dims < 4:
        raise InputError(fields.path, f"head_dim={dims}, but dynamic rope needs at least 4")
    for key in ("short_factor", "long_factor"):
        values = getattr(scaling, key)
        if values is not None and len(values) != dims // 2:
            what = f"{key} holds {len(values)} numbers, but head_dim={dims} has {dims // 2} pairs"
            raise InputError(fields.path, what)
