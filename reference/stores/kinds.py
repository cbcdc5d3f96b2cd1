"""The kinds of key/value cache by name, what each may be told, and its layers: no arithmetic."""

from dataclasses import dataclass
from typing import Any

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.stores.ring import Ring

AFFINE_BITS = {"affine8": 8, "affine4": 4}
EXACT = ("concatenating", "growing", "preallocated", "sliding")  # give what no cache gives
ROTATING = ("rotating", "rotating-mlx-lm", "rotating-temporal")
UNBIASED = {"turbo4": 4, "turbo3": 3, "turbo2": 2}  # keys have a bit for what codes leave out
TURBO_BITS = UNBIASED | {f"{kind}-mse": bits for kind, bits in UNBIASED.items()}
TURBO_WIDTHS = (32, 64, 128, 256)
AFFINE_GROUP = 32  # dimensions: the fewest that share a scale
RECENT = 128  # tokens that a turbo cache keeps as they are, if nobody says
QUANTISED = ("int8", *AFFINE_BITS, *TURBO_BITS)
KINDS = (*EXACT, *ROTATING, *QUANTISED)


@dataclass(frozen=True)
class CacheOptions:
    """What a kind is told: `room` is of "preallocated", `size` and `keep` of those that rotate.

    All are counts of tokens. A rotating cache keeps the first `keep` and `size` in all. `recent` is
    of the turbo kinds: how many of the newest are not quantised.
    """

    room: int | None = None
    size: int | None = None
    keep: int | None = None
    recent: int | None = None


def check_kind(kind: str, options: CacheOptions) -> None:
    """Refuse a kind that does not exist, and options that are not for it, missing or none.

    Raises: InputError that names what it is and what it may be.
    """
    room, size, keep = options.room, options.size, options.keep
    if kind not in KINDS:
        raise InputError("cache", f"kind={show(kind)}, but should be one of {', '.join(KINDS)}")
    if kind == "preallocated" and (room is None or room < 1):
        raise InputError("cache", f"room={room}, but a preallocated cache needs 1 or more")
    if kind != "preallocated" and room is not None:
        raise InputError("cache", f"room={room}, but a cache that is {kind} makes its own")
    if kind not in ROTATING and not (size is None and keep is None):
        what = f"size={size}, keep={keep}, but a cache that is {kind} keeps all that is seen"
        raise InputError("cache", what)
    if kind not in TURBO_BITS and options.recent is not None:
        what = f"recent={options.recent}, but a cache that is {kind} treats all tokens alike"
        raise InputError("cache", what)
    if (options.recent or 0) < 0:
        raise InputError("cache", f"recent={options.recent}, but should be 0 or more")
    if kind in ROTATING and (size is None or size < 1):
        what = f"size={size}, but one that is {kind} needs 1 or more (--cache-size)"
        raise InputError("cache", what)
    if kind in ROTATING and not 0 <= (keep or 0) < (size or 1):
        what = f"keep={keep}, but a cache of {size} keeps 0 to {(size or 1) - 1}"
        raise InputError("cache", what)


def heads_of(config: Any, layer: int) -> tuple[int, int]:
    """Return how many key/value heads a layer has, and how wide they are."""
    if hasattr(config, "heads_of"):
        return config.heads_of(layer)
    return config.num_key_value_heads, config.head_dim


def kept_whole(kind: str, config: Any) -> list[int]:
    """Return the layers whose heads are of a width that a quantised kind has no codes for."""
    layers = range(config.num_hidden_layers)
    return [layer for layer in layers if not codes_width(kind, heads_of(config, layer)[1])]


def codes_width(kind: str, width: int) -> bool:
    """Tell whether a kind has codes for heads of this width, or needs none."""
    if kind in AFFINE_BITS:
        return width % AFFINE_GROUP == 0
    return kind not in TURBO_BITS or width in TURBO_WIDTHS


def layer_kinds(config: Any) -> list[str]:
    """Return for each layer "full_attention" or "sliding_attention"."""
    window = getattr(config, "sliding_window", None)
    kind = "full_attention" if window is None else "sliding_attention"
    return list(getattr(config, "layer_types", (kind,) * config.num_hidden_layers))


def rings_of(kind: str, config: Any, options: CacheOptions) -> dict[str, Ring]:
    """Return what layers of each kind may drop, empty: by their window, and in a rotating cache.

    Of a layer with a window in a rotating cache, the narrower of both decides.
    """
    if kind not in ("sliding", *ROTATING):
        return {}
    kinds, rings = layer_kinds(config), {}
    window = getattr(config, "sliding_window", None)
    if kind in ROTATING:
        keep, size = options.keep or 0, options.size or 1
        rule = "columns" if kind == "rotating-mlx-lm" else "ring"
        ring = Ring(size - keep, keep, rule, in_order=kind == "rotating-temporal")
        rings = dict.fromkeys(("full_attention", "sliding_attention"), ring)
        window = None if window is None or window > size else window
    if window is not None:
        rings["sliding_attention"] = Ring(window, in_order=kind == "rotating-temporal")
    return {one: ring for one, ring in rings.items() if one in kinds}
