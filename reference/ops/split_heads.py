from lockstep.reference.shapes import Heads, Inputs


def split_heads(x: Inputs, *, heads: int) -> Heads:
    """Cut the last axis into heads: (B, L, H*D) -> (B, L, H, D).

    Head h owns the columns h*D .. (h+1)*D - 1.
    Rounding: none.
    Edges: no tokens give (B, 0, H, D).
    Raises: ValueError if the width is no multiple of `heads`.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
    """
    if heads < 1 or x.shape[-1] % heads:
        raise ValueError(f"split_heads: width {x.shape[-1]} is no multiple of heads={heads}")
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
