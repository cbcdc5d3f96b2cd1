"""A cache of the kind that is asked for by name."""

from collections.abc import Callable
from typing import Any

from lockstep.reference.caches.affine import Affine
from lockstep.reference.caches.cache import Cache, Store
from lockstep.reference.caches.concatenating import Concatenating
from lockstep.reference.caches.growing import Growing
from lockstep.reference.caches.int8 import Int8
from lockstep.reference.caches.preallocated import Preallocated
from lockstep.reference.caches.windowed import Windowed
from lockstep.reference.tokenizer.cache_kinds import AFFINE_BITS, check_kind, sliding_layers


def make_cache(kind: str, config: Any, *, room: int | None) -> Cache:
    """Return an empty cache for a model. `room` is for `kind="preallocated"`, in tokens.

    Raises: InputError if there is no such kind, or room is missing or for nothing.
    """
    check_kind(kind, room)
    if kind == "sliding":
        window, sliding = sliding_layers(config)
        stores = [Windowed if one else Concatenating for one in sliding]
        return Cache(len(sliding), lambda layer: stores[layer](), window)
    make = maker(kind, room)
    return Cache(config.num_hidden_layers, lambda layer: make(), room=room)


def maker(kind: str, room: int | None) -> Callable[[], Store]:
    """Return what makes an empty store for any layer."""
    if kind in AFFINE_BITS:
        return lambda: Affine(AFFINE_BITS[kind])
    if room is not None:
        return lambda: Preallocated(room)
    return {"concatenating": Concatenating, "growing": Growing, "int8": Int8}[kind]
