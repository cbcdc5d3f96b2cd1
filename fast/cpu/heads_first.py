from lockstep.fast.shapes import Heads, Queries


def heads_first(x: Heads) -> Queries:
    """Put the head axis before the tokens. Differs from `reference.ops.heads_first`: in nothing."""
    return x.swapaxes(1, 2)
