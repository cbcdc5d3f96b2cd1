"""The kinds of key/value cache by name, and how many bits a quantised one has: no arithmetic."""

from typing import Any

from lockstep.reference.checkpoint.errors import InputError, show

AFFINE_BITS = {"affine8": 8, "affine4": 4}
KINDS = ("concatenating", "growing", "preallocated", "sliding", "int8", *AFFINE_BITS)


def check_kind(kind: str, room: int | None) -> None:
    """Refuse a kind that does not exist, and room where it is not needed, missing or none.

    Raises: InputError that names what it is and what it may be.
    """
    if kind not in KINDS:
        raise InputError("cache", f"kind={show(kind)}, but should be one of {', '.join(KINDS)}")
    if kind == "preallocated" and (room is None or room < 1):
        raise InputError("cache", f"room={room}, but a preallocated cache needs 1 or more")
    if kind != "preallocated" and room is not None:
        raise InputError("cache", f"room={room}, but a cache that is {kind} makes its own")


def sliding_layers(config: Any) -> tuple[int | None, list[bool]]:
    """Return the window of a model's sliding layers, None if it has none, and which they are."""
    layers, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", ("sliding_attention",) * layers)
    sliding = [window is not None and kind == "sliding_attention" for kind in kinds]
    return window if any(sliding) else None, sliding
