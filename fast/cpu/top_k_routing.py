import numpy as np

from lockstep.fast.shapes import Routing


def top_k_routing(logits: Routing, *, per_token: int, normalize: bool) -> Routing:
    """Choose the experts of each token, and how much each of them counts.

    Differs from `reference.ops.top_k_routing`: a value is chosen by its rank, which it gets by
    counting those that stand before it.
    """
    experts = logits.shape[-1]
    if not 1 <= per_token <= experts:
        raise ValueError(f"top_k_routing: {per_token} of {experts} experts")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out = np.exp(logits.astype(np.float32) - logits.max(axis=-1, keepdims=True))
        out /= out.sum(axis=-1, keepdims=True)
        places = np.argsort(-out, axis=-1, kind="stable").argsort(axis=-1)
        out[places >= per_token] = 0
        if normalize:
            np.divide(out, out.sum(axis=-1, keepdims=True), out=out, where=places < per_token)
        return out.astype(logits.dtype, copy=False)
