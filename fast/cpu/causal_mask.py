from lockstep.fast.masks import Seen, seen_keys
from lockstep.fast.shapes import KeyPositions, Positions


def causal_mask(
    query_positions: Positions, key_positions: KeyPositions, *, window: int | None
) -> Seen:
    """Say which keys each query may see: those at or before its own position.

    Differs from `reference.ops.causal_mask`: one query that sees all keys stays a word.
    """
    return seen_keys(query_positions, key_positions, window)
