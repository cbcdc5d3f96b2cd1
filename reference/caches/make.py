"""A cache of the kind that is asked for by name."""

from typing import Any

import numpy as np

from lockstep.reference.caches.affine import Affine
from lockstep.reference.caches.int8 import Int8
from lockstep.reference.caches.turbo import Turbo
from lockstep.reference.stores.building import Makers, built
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.coded import Codec
from lockstep.reference.stores.concatenating import Concatenating
from lockstep.reference.stores.kinds import AFFINE_BITS, TURBO_BITS, UNBIASED, CacheOptions


def make_cache(kind: str, config: Any, *, options: CacheOptions) -> Cache:
    """Return an empty cache for a model. What it is told depends on the kind.

    Raises: InputError if there is no such kind, or an option is missing or not for it.
    """
    return built(kind, config, options, Makers(Concatenating, np.zeros, codec))


def codec(kind: str, keys: bool) -> Codec:
    """Return what quantises the keys or the values in a cache of this kind."""
    if kind in TURBO_BITS:
        return Turbo(TURBO_BITS[kind], unbiased=keys and kind in UNBIASED)
    return Int8() if kind == "int8" else Affine(AFFINE_BITS[kind])
