"""The tokens that both sides of a comparison saw."""

import json
from collections.abc import Sequence
from dataclasses import replace

from lockstep.parity.dumps.dump import Dump
from lockstep.reference.checkpoint.errors import InputError


def first_apart(ours: list[int], theirs: list[int]) -> int | None:
    """Return the first place where two lists, as far as both go, hold other ids."""
    pairs = zip(ours, theirs, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), None)


def where_apart(ours: list[int], theirs: list[int]) -> int:
    """Return the same place, or where the shorter of the two ends."""
    place = first_apart(ours, theirs)
    return min(len(ours), len(theirs)) if place is None else place


def told_tokens(left: Dump, right: Dump, tokens: Sequence[int]) -> tuple[Dump, Dump]:
    """Return both sides with the prompt that a person says, where they say none.

    Raises: InputError if both say another one.
    """
    said = {"tokens": json.dumps([*tokens])}
    if None not in (left.tokens, right.tokens) and left.tokens != [*tokens]:
        raise InputError(left.path, "its prompt is not that of --tokens")
    first, second = (side if side.tokens is not None else replace(side, about={**side.about} | said)
                     for side in (left, right))  # fmt: skip
    return first, second


def shared_tokens(left: Dump, right: Dump) -> list[int] | None:
    """Return the prompt of both sides, from whichever says it.

    Raises: InputError at the first place where they are not the same.
    """
    ours, theirs = left.tokens, right.tokens
    if ours is None or theirs is None or ours == theirs:
        return theirs if ours is None else ours
    what = f"the prompt is not that of {left.path}: the token ids differ"
    raise InputError(right.path, what, f"from position {where_apart(ours, theirs)} on")
