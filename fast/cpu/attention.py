import numpy as np

from lockstep.fast import kernels
from lockstep.fast.caches.held_codes import FEW, HeldCodes
from lockstep.fast.cpu.attention_context import attention_context
from lockstep.fast.cpu.attention_scores import attention_scores
from lockstep.fast.cpu.softmax import POLICIES, softmax
from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Keys, Queries, Values

BLOCK = 256  # queries whose scores stand in memory at a time


def attention(
    queries: Queries, keys: Keys, values: Values, mask: Seen, *, scale: float, masked_row: str
) -> Queries:
    """Attend: scores, softmax and weighted average, a block of queries at a time.

    Keys and values may be what a cache holds as codes.
    Differs from `reference.ops.attention`: scores and probabilities stay in float32 between the
    parts; a masked NaN in the values does spoil the result, except where machine code goes along
    the keys of a single query.
    """
    found = in_kernel(queries, keys, values, mask, scale) if masked_row in POLICIES else None
    if found is not None:
        return found
    if isinstance(keys, HeldCodes):
        keys, values = keys.decoded(), values.decoded()
    wide = queries.astype(np.float32, copy=False)
    out = np.empty((*wide.shape[:3], values.shape[3]), np.float32)
    for start in range(0, queries.shape[2], BLOCK):
        part = slice(start, start + BLOCK)
        seen = Seen(mask.kind, mask.mask[:, :, part])
        scores = attention_scores(wide[:, :, part], keys, scale=scale)
        probs = softmax(scores, seen, masked_row=masked_row)
        out[:, :, part] = attention_context(probs, values, seen)
    return out.astype(queries.dtype, copy=False)


def in_kernel(
    queries: Queries, keys: Keys, values: Values, mask: Seen, scale: float
) -> Queries | None:
    """Attend in machine code, one query at a time or many; None where there is none for it."""
    if not kernels.available():
        return None
    if isinstance(keys, HeldCodes):
        found = over_codes(queries, keys, values, mask, scale)
    elif queries.shape[2] > 1:
        found = over_many(queries, keys, values, mask, scale)
    else:
        found = kernels.module("attend").attended(queries, keys, values, mask, scale=scale)
    return None if found is None else found.astype(queries.dtype, copy=False)


def over_many(
    queries: Queries, keys: Keys, values: Values, mask: Seen, scale: float
) -> Queries | None:
    """Attend with many queries: halves by a matrix unit, if there is one, else widened."""
    if queries.dtype != np.float32:
        found = kernels.module("attend_tiles").attended(queries, keys, values, mask, scale=scale)
        if found is not None:
            return found
    wide, held, kept = (part.astype(np.float32, copy=False) for part in (queries, keys, values))
    return kernels.module("attend_prompt").attended(wide, held, kept, mask, scale=scale)


def over_codes(
    queries: Queries, keys: HeldCodes, values: HeldCodes, mask: Seen, scale: float
) -> Queries | None:
    """Attend to codes: a few queries to each as it is read, many to blocks that are decoded."""
    if queries.shape[2] <= FEW:
        found = kernels.module("attend_codes").attended(queries, keys, values, mask, scale=scale)
        if found is not None:
            return found
    return kernels.module("attend_decoded").attended(queries, keys, values, mask, scale=scale)
