"""Attention over TurboQuant's codes as they are: the query is turned, and not every key back."""

import mlx.core as mx

from lockstep.fast.caches import turbo_mlx as turbo
from lockstep.fast.caches.held_codes import FEW, HeldCodes
from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Array, Queries
from lockstep.reference.stores.codecs import TurboCodes


def attended(
    queries: Queries, keys: HeldCodes, values: HeldCodes, mask: Seen, *, scale: float
) -> Queries | None:
    """Attend with a few queries (B, H, L, D); None if that is not what is here.

    Since <R q, R k> is <q, k>, and the average of turned values is the turned average. Lengths
    multiply scores and probabilities, of which there are fewer than coordinates.
    """
    batch, heads, length, width = queries.shape
    if length > FEW or mask.blind or not isinstance(keys.codec, TurboCodes):
        return None
    groups, count = keys.shape[1], keys.codes[0].shape[2]
    grouped = (queries.astype(mx.float32) * scale).reshape(batch, groups, -1, width)
    scores = compared(grouped, keys)
    if mask.kind != "all":
        seen = mx.array(mask.mask)[:, :, None]  # (B, 1, 1, L, S)
        scores = mx.unflatten(scores, 2, (heads // groups, length))
        scores = mx.flatten(mx.where(seen, scores, -mx.inf), 2, 3)
    probs = mx.softmax(scores, axis=-1, precise=True)
    out = averaged(probs[..., :count], values)
    if values.recent is not None:
        out = out + probs[..., count:] @ values.recent.astype(mx.float32)
    return out.reshape(queries.shape).astype(queries.dtype)


def compared(queries: Array, keys: HeldCodes) -> Array:
    """Return the scores of scaled queries (B, G, M, D) with what is held: (B, G, M, S)."""
    codec, (words, lengths, *left) = keys.codec, keys.codes
    table = codec.tables(keys.like.shape[-1])
    turned = turbo.turned(queries, table)
    if codec.unbiased:
        codes, signs = turbo.parted(words, codec.bits, table)
        scores = turned @ turbo.looked_up(codes, codec.bits - 1, table).swapaxes(-1, -2)
        asked = turbo.projected(turned, table) * turbo.factor(table)
        late = asked @ turbo.looked_up(signs, 0, table).swapaxes(-1, -2)
        scores = scores + late * left[0].astype(mx.float32).swapaxes(-1, -2)
    else:
        scores = turned @ turbo.looked_up(words, codec.bits, table).swapaxes(-1, -2)
    scores = scores * lengths.astype(mx.float32).swapaxes(-1, -2)
    if keys.recent is None:
        return scores
    late = queries @ keys.recent.astype(mx.float32).swapaxes(-1, -2)
    return mx.concatenate([scores, late], axis=-1)


def averaged(probs: Array, values: HeldCodes) -> Array:
    """Return the sum of what is in codes by probabilities (B, G, M, S): (B, G, M, D)."""
    codec, (words, lengths) = values.codec, values.codes
    table = codec.tables(values.like.shape[-1])
    weights = probs * lengths.astype(mx.float32).swapaxes(-1, -2)
    return turbo.turned_back(weights @ turbo.looked_up(words, codec.bits, table), table)
