from lockstep.fast.shapes import Hidden


def multiply(x: Hidden, y: Hidden) -> Hidden:
    """Multiply two tensors of one shape. Differs from `reference.ops.multiply`: in nothing."""
    if x.shape != y.shape:
        raise ValueError(f"multiply: y.shape={y.shape}, but should be {x.shape} as x has")
    return x * y.astype(x.dtype)
