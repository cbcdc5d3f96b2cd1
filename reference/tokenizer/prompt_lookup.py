"""Drafts without a model: what followed the last words when they were said before."""

from collections.abc import Sequence


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
