"""A cache of the kind that is asked for by name."""

from collections.abc import Callable
from typing import Any

from lockstep.fast.caches.affine import Affine
from lockstep.fast.caches.cache import Cache, Store
from lockstep.fast.caches.concatenating import Concatenating
from lockstep.fast.caches.growing import Growing
from lockstep.fast.caches.int8 import Int8
from lockstep.fast.caches.preallocated import Preallocated
from lockstep.fast.caches.windowed import Windowed
from lockstep.reference.tokenizer.cache_kinds import AFFINE_BITS, check_kind, sliding_layers


def make_cache(kind: str, config: Any, *, room: int | None, backend: Any) -> Cache:
    """Return an empty cache for a model, whose arrays are the backend's."""
    check_kind(kind, room)
    if kind == "sliding":
        window, sliding = sliding_layers(config)
        makers = [Windowed if one else lambda: Growing(backend.zeros) for one in sliding]
        return Cache(len(sliding), lambda layer: makers[layer](), window)
    make = maker(kind, room, backend)
    return Cache(config.num_hidden_layers, lambda layer: make(), room=room)


def maker(kind: str, room: int | None, backend: Any) -> Callable[[], Store]:
    """Return what makes an empty store for any layer."""
    if kind in AFFINE_BITS:
        return lambda: Affine(AFFINE_BITS[kind], backend)
    if room is not None:
        return lambda: Preallocated(room, backend.zeros)
    if kind == "int8":
        return lambda: Int8(backend)
    return Concatenating if kind == "concatenating" else lambda: Growing(backend.zeros)
