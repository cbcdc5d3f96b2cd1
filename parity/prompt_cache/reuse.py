"""How much of a text a cache has read already."""

from collections.abc import Sequence

import numpy as np

from lockstep.parity.prompt_cache.loading import Loaded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.cache import Cache


def reused(loaded: Loaded, tokens: Sequence[int]) -> Cache | None:
    """Return a cache of the tokens that both begin with, cut back to them, or None if it cannot be.

    At least the last of `tokens` is left to be read, since its logits are not kept. A text that
    must not be read in parts is read anew. The loaded cache stays as it is.
    Raises: InputError if it holds several rows.
    """
    if len(loaded.tokens) != 1:
        what = f"the saved cache holds {len(loaded.tokens)} rows, but a prompt is one"
        raise InputError("cache", what)
    longest = max(loaded.tokens.shape[1], len(tokens))
    if loaded.steady is not None and longest > loaded.steady:
        return None
    keep = min(common(loaded.tokens[0], tokens), len(tokens) - 1)
    branch = loaded.cache.branch()
    try:
        branch.trim(branch.positions.length - keep)
    except InputError:  # a ring has dropped what would be needed
        return None
    return branch if keep else None


def common(one: np.ndarray, other: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(one[:count] != np.asarray(other[:count]))
    return int(differ[0]) if len(differ) else count
