import mlx.core as mx

from lockstep.fast.shapes import Routing


def top_k_routing(logits: Routing, *, per_token: int, normalize: bool) -> Routing:
    """Choose the experts of each token, and how much each of them counts.

    Differs from `reference.ops.top_k_routing`: in nothing. Equal probabilities keep the order of
    their ids because MLX sorts stably.
    """
    if not 1 <= per_token <= logits.shape[-1]:
        raise ValueError(f"top_k_routing: {per_token} of {logits.shape[-1]} experts")
    if not logits.size:
        return logits
    probs = mx.softmax(logits.astype(mx.float32), axis=-1)
    best = mx.argsort(-probs, axis=-1)[..., :per_token]
    chosen = mx.take_along_axis(probs, best, axis=-1)
    if normalize:
        chosen = chosen / chosen.sum(axis=-1, keepdims=True)
    out = mx.put_along_axis(mx.zeros_like(probs), best, chosen, axis=-1)
    return out.astype(logits.dtype)
