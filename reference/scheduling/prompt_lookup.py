"""Drafts without a model: what followed the last words when they were said before."""

from collections.abc import Sequence

import numpy as np


def looked_up(text: Sequence[int], count: int, *, longest: int) -> list[int]:
    """Return up to `count` tokens that may come next, [] if nothing repeats.

    The last `longest` tokens are looked for earlier in the text, then one fewer, down to a single
    one. Of several places the latest counts, and what followed there is the draft. A draft that
    reaches the end of the text goes on with itself: after "a b a b" comes "a b a b ...".
    Source: Saxena 2023, prompt lookup decoding.
    """
    for length in range(min(longest, len(text) - 1), 0, -1):
        last = text[-length:]
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == last:
                period = len(text) - length - start
                followed = text[start + length :]
                return [followed[place % period] for place in range(count)]
    return []


class LookupDraft:
    """No model: what followed the last tokens when they were there before, as if certain."""

    def __init__(self, *, vocabulary: int, longest: int):
        self.vocabulary, self.longest = vocabulary, longest
        self.shares: list[np.ndarray] = []
        self.prompt = 0

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        drafted = looked_up(text, count, longest=self.longest)
        self.shares = [np.eye(1, self.vocabulary, token)[0] for token in drafted]
        return drafted
