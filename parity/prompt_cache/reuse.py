"""How much of a text a cache has read already."""

from collections.abc import Sequence

from lockstep.parity.prompt_cache.loading import Loaded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.feeding import still_good
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
    keep = still_good(loaded.tokens[0].tolist(), tokens, loaded.steady)
    branch = loaded.cache.branch()
    try:
        branch.trim(branch.positions.length - keep)
    except InputError:  # a ring has dropped what would be needed
        return None
    return branch if keep else None
