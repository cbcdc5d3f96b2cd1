import mlx.core as mx

from lockstep.fast.caches.attend_codes_mlx import attended
from lockstep.fast.caches.held_codes import HeldCodes
from lockstep.fast.masks import Seen
from lockstep.fast.ops.softmax import MASKED_ROWS
from lockstep.fast.shapes import Array, Keys, Queries, Values


def attention(
    queries: Queries, keys: Keys, values: Values, mask: Seen, *, scale: float, masked_row: str
) -> Queries:
    """Attend in one kernel: no score matrix is ever written where the device has one.

    Keys and values may be what a cache holds as codes. Of no queries, or over no keys: zeros.
    Differs from `reference.ops.attention`: on a GPU scores and probabilities stay in float32
    inside, on a CPU the query is scaled and rounded first, but over affine and TurboQuant's codes
    up to 16 queries are float32 throughout on every device; a masked NaN in the values does spoil
    the result.
    """
    if masked_row not in MASKED_ROWS:
        raise ValueError(f"masked_row={masked_row!r}, but should be one of {[*MASKED_ROWS]}")
    if not queries.size or not keys.shape[2]:  # MLX may never end, or end the whole process
        return mx.zeros((*queries.shape[:-1], values.shape[-1]), queries.dtype)
    if isinstance(keys, HeldCodes):
        out = attended(queries, keys, values, mask, scale=scale)
        if out is not None:
            return out
        keys, values = keys.decoded(), values.decoded()
    form = {"all": None, "causal": "causal"}.get(mask.kind, "some")
    if form == "some":
        form = mx.array(mask.mask)
    out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=form)
    return blind_rows(out, values, form, masked_row) if mask.blind else out


def blind_rows(out: Queries, values: Values, seen: Array, masked_row: str) -> Queries:
    """Give rows that see no key what the policy says, whatever the kernel made of them."""
    if masked_row == "uniform":
        mean = values.mean(axis=2, keepdims=True)  # (B, G, 1, D)
        policy = mx.repeat(mean, out.shape[1] // values.shape[1], axis=1)
    else:
        policy = mx.array(0.0 if masked_row == "zero" else mx.nan, out.dtype)
    return mx.where(seen.any(axis=-1, keepdims=True), out, policy)
