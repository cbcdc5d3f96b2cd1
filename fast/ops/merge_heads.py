from lockstep.fast.shapes import Inputs, Queries


def merge_heads(x: Queries) -> Inputs:
    """Put the heads side by side. Differs from `reference.ops.merge_heads`: in nothing."""
    batch, heads, length, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * width)
