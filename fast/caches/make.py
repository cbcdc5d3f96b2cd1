"""A cache of the kind that is asked for by name."""

from typing import Any

from lockstep.fast.caches.affine import Affine
from lockstep.fast.caches.int8 import Int8
from lockstep.fast.caches.turbo import Turbo
from lockstep.reference.stores.building import Makers, built
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.coded import Codec
from lockstep.reference.stores.growing import Growing
from lockstep.reference.stores.kinds import AFFINE_BITS, TURBO_BITS, UNBIASED, CacheOptions


def make_cache(kind: str, config: Any, *, options: CacheOptions, backend: Any) -> Cache:
    """Return an empty cache for a model, whose arrays are the backend's."""

    def codec(kind: str, keys: bool) -> Codec:
        """Return what quantises the keys or the values in a cache of this kind."""
        if kind in TURBO_BITS:
            return Turbo(TURBO_BITS[kind], backend.turbo, unbiased=keys and kind in UNBIASED)
        coder = backend.quantizing
        return Int8(coder) if kind == "int8" else Affine(AFFINE_BITS[kind], coder)

    makers = Makers(lambda: Growing(backend.zeros), backend.zeros, codec)
    return built(kind, config, options, makers)
