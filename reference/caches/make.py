"""A cache of the kind that is asked for by name."""

from typing import Any

import numpy as np

from lockstep.reference.caches import affine, int8, turbo
from lockstep.reference.stores.building import Makers, built
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.codecs import codec_named
from lockstep.reference.stores.coded import decoded
from lockstep.reference.stores.concatenating import Concatenating
from lockstep.reference.stores.kinds import CacheOptions


def make_cache(kind: str, config: Any, *, options: CacheOptions) -> Cache:
    """Return an empty cache for a model. What it is told depends on the kind.

    Raises: InputError if there is no such kind, or an option is missing or not for it.
    """
    makers = Makers(
        plain=Concatenating,
        zeros=np.zeros,
        codec=lambda kind, keys: codec_named(kind, int8, affine, turbo, keys=keys),
        hold=decoded,
    )
    return built(kind, config, options, makers)
