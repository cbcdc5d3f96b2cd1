from lockstep.reference.shapes import Inputs, Queries


def merge_heads(x: Queries) -> Inputs:
    """Put the heads side by side again: (B, H, L, D) -> (B, L, H*D).

    Undoes `heads_first` and `split_heads`. What comes out enters the output projection; its
    width need not be the model's.
    Rounding: none.
    Edges: any axis may have the size 0.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
    """
    batch, heads, length, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * width)
