import numpy as np

from lockstep.reference.shapes import Keys, NewKeys


def concatenate(past: Keys, new: NewKeys) -> Keys:
    """Append the new tokens' keys or values to those of the P tokens held: the growing cache.

        out = [past, new] along the token axis      (B, G, P, D), (B, G, L, D) -> (B, G, P+L, D)

    Rounding: none; both have one dtype.
    Edges: an empty past gives the new tokens.
    Raises: ValueError if the dtypes differ.
    Source: Shazeer 2019, arXiv:1911.02150, section 2 (incremental attention).
    """
    if past.dtype != new.dtype:
        raise ValueError(f"concatenate: new.dtype={new.dtype}, but the cache holds {past.dtype}")
    return np.concatenate([past, new], axis=2)
