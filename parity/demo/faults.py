"""The bug that the demo plants: query heads given to the wrong key heads."""

from types import SimpleNamespace
from typing import Any

import numpy as np


def tiled_heads(ops: Any) -> Any:
    """Return the operations of `fast.cpu` with attention that shares key heads in the wrong order.

    With H query heads over G key heads, head h belongs to key head h // (H/G); `repeat` lays them
    out so. Written with `tile`, it gets h % G: every shape fits, and the text is still English.
    """

    def attention(queries: Any, keys: Any, values: Any, mask: Any, **options: Any) -> Any:
        copies = queries.shape[1] // keys.shape[1]
        tiled = [np.tile(shared, (1, copies, 1, 1)) for shared in (keys, values)]
        return ops.attention(queries, *tiled, mask, **options)

    right = {name: getattr(ops, name) for name in ops.__all__}
    return SimpleNamespace(**right | {"attention": attention})
