"""What stands in a file of a prompt cache: the names of its tensors, and what each must be.

positions, tokens           (B, S)      where each token stands (-2: forgotten), and its id
rings.KIND.slots            (S',)       which tokens layers of a kind hold, if not all
layers.N.keys.P             (B, G, S', ...)   part P of a layer's keys as they are held
layers.N.values.P
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.dumps.trace_file import TAGS
from lockstep.reference.precision import dtype_named
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.kinds import heads_of
from lockstep.reference.stores.ring import FORGOTTEN, PADDING

FORMAT, VERSION = "lockstep-cache", "1"
SIDES = ("keys", "values")
TAG_OF = TAGS | {"uint32": "U32"}


def owns_keys(config: Any, layer: int) -> bool:
    """Tell whether a layer has keys and values of its own."""
    return not hasattr(config, "owns_keys") or config.owns_keys(layer)


def parts(cache: Cache) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the value of each part of each layer, in NumPy."""
    for layer, pair in enumerate(cache.state()):
        for side, arrays in zip(SIDES, pair, strict=True):
            for number, array in enumerate(arrays):
                yield f"layers.{layer}.{side}.{number}", to_numpy(array)


def in_order(positions: np.ndarray) -> bool:
    """Tell whether each row's tokens count from 0, as far as they are not forgotten, (B, S)."""
    forgotten = positions == FORGOTTEN
    if (forgotten.any(axis=0) != forgotten.all(axis=0)).any():
        return False
    before = np.cumsum(forgotten[0])  # how many of a column and those before it are forgotten
    for row in positions:
        real = np.flatnonzero(row >= 0)
        steps = np.diff(row[real], prepend=PADDING)
        if (steps < 1).any() or (steps > 1 + np.diff(before[real], prepend=0)).any():
            return False
    return True


def expected(model: Any, kind: str, options: dict[str, int | None]) -> dict[str, Any]:
    """Return the shape and tag of each part when a cache of this kind holds one token of one row.

    The model is not run: zeros go through its stores, and so through what quantises.
    """
    told = options | ({"room": 1} if options.get("room") else {})  # the file's may be any number
    cache = model.make_cache(kind, **told)
    cache.positions.extend(np.zeros((1, 1), np.int64))
    for layer in range(model.config.num_hidden_layers):
        if owns_keys(model.config, layer):
            heads, width = heads_of(model.config, layer)
            blank = model.put(np.zeros((1, heads, 1, width), dtype_named(model.dtype)))
            cache.update(model.ops, layer, blank, blank)
    return {name: (one.shape, TAG_OF[one.dtype.name]) for name, one in parts(cache)}
