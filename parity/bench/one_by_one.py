"""Greedy decoding of an engine that has no loop of its own here."""

from collections.abc import Callable, Iterator


def one_by_one(next_of: Callable[[list[int]], int], token: int, count: int) -> Iterator[int]:
    """Yield `count` ids: each is what `next_of` returns for the one before, `token` at first."""
    for _ in range(count):
        token = next_of([token])
        yield token
