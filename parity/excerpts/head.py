"""What a model's head is asked for where some tokens are kept: these, and each prompt's last one.

Logits are the widest tap by far: of 2,048 tokens and 151,936 words they are 1.2 GB. The last token
says what a step after the prompt is fed.
"""

from __future__ import annotations

import numpy as np

from lockstep.parity.excerpts.excerpt import Excerpt

AXES = 3  # of what a head makes: rows, tokens, numbers


def only(excerpt: Excerpt) -> np.ndarray:
    """Return the tokens that get logits, (B, N), as `only` of `stages`: the last ones come last.

    N is not how long the prompts are, so that it tells the taps that are of these tokens alone.
    """
    last = np.array(excerpt.lengths)[:, None] - 1
    times = 2 if max(excerpt.counts) + 1 == excerpt.longest else 1
    return np.concatenate([excerpt.positions, *[last] * times], axis=1).astype(np.int64)


def cut(excerpt: Excerpt, name: str, x: np.ndarray) -> np.ndarray:
    """Return the rows of the excerpt of a tap, whether it is of all tokens or of `only` these."""
    if x.ndim != AXES or x.shape[1] != only(excerpt).shape[1]:
        return excerpt.cut(name, x)
    some = x[:, : max(excerpt.counts)]
    return np.where(excerpt.real(1, AXES), some, np.zeros((), x.dtype))
