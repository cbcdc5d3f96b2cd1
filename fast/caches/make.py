"""A cache of the kind that is asked for by name."""

from typing import Any

from lockstep.fast.caches.held_codes import HeldCodes
from lockstep.reference.stores.building import Makers, built
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.codecs import codec_named
from lockstep.reference.stores.growing import Growing
from lockstep.reference.stores.kinds import CacheOptions


def make_cache(kind: str, config: Any, *, options: CacheOptions, backend: Any) -> Cache:
    """Return an empty cache for a model, whose arrays are the backend's."""
    coders = backend.int8, backend.affine, backend.turbo
    makers = Makers(
        plain=lambda: Growing(backend.zeros),
        zeros=backend.zeros,
        codec=lambda kind, keys: codec_named(kind, *coders, keys=keys),
        hold=HeldCodes,
    )
    return built(kind, config, options, makers)
