"""Products with TurboQuant's codes as they are: the query is turned, and not every key back.

<R q, R k> is <q, k>, and the average of turned values is the turned average. Lengths multiply
scores and probabilities, of which there are fewer than coordinates.
"""

import mlx.core as mx

from lockstep.fast.caches import turbo_mlx as turbo
from lockstep.fast.caches.held_codes import HeldCodes
from lockstep.fast.shapes import Array


def compared(queries: Array, keys: HeldCodes) -> Array:
    """Return the scores of scaled queries (B, G, M, D) with what is in codes: (B, G, M, S)."""
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
    return scores * lengths.astype(mx.float32).swapaxes(-1, -2)


def averaged(probs: Array, values: HeldCodes) -> Array:
    """Return the sum of what is in codes by probabilities (B, G, M, S): (B, G, M, D)."""
    codec, (words, lengths) = values.codec, values.codes
    table = codec.tables(values.like.shape[-1])
    weights = probs * lengths.astype(mx.float32).swapaxes(-1, -2)
    return turbo.turned_back(weights @ turbo.looked_up(words, codec.bits, table), table)
