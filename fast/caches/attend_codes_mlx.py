"""A few queries over affine and TurboQuant's codes as held, on the device: nothing is decoded."""

import mlx.core as mx

from lockstep.fast.caches import attend_affine_mlx, attend_turbo_mlx
from lockstep.fast.caches.held_codes import FEW, HeldCodes
from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Queries
from lockstep.reference.stores.codecs import AffineCodes, TurboCodes

PRODUCTS = {AffineCodes: attend_affine_mlx, TurboCodes: attend_turbo_mlx}


def attended(
    queries: Queries, keys: HeldCodes, values: HeldCodes, mask: Seen, *, scale: float
) -> Queries | None:
    """Attend with a few queries (B, H, L, D); None if that is not what is here.

    Rounding: in float32, whatever the queries are.
    """
    batch, heads, length, width = queries.shape
    products = PRODUCTS.get(type(keys.codec))
    if length > FEW or mask.blind or products is None:
        return None
    groups, count = keys.shape[1], keys.codes[0].shape[2]
    grouped = (queries.astype(mx.float32) * scale).reshape(batch, groups, -1, width)
    scores = products.compared(grouped, keys)
    if keys.recent is not None:
        late = grouped @ keys.recent.astype(mx.float32).swapaxes(-1, -2)
        scores = mx.concatenate([scores, late], axis=-1)
    if mask.kind != "all":
        seen = mx.array(mask.mask)[:, :, None]  # (B, 1, 1, L, S)
        scores = mx.unflatten(scores, 2, (heads // groups, length))
        scores = mx.flatten(mx.where(seen, scores, -mx.inf), 2, 3)
    probs = mx.softmax(scores, axis=-1, precise=True)
    out = products.averaged(probs[..., :count], values)
    if values.recent is not None:
        out = out + probs[..., count:] @ values.recent.astype(mx.float32)
    return out.reshape(queries.shape).astype(queries.dtype)
