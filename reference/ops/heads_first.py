from lockstep.reference.shapes import Heads, Queries


def heads_first(x: Heads) -> Queries:
    """Put the head axis before the tokens: (B, L, H, D) -> (B, H, L, D).

    Rounding: none.
    Edges: any axis may have the size 0.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
    """
    return x.swapaxes(1, 2)
