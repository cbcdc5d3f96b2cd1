"""Which tokens of a prompt are meant: last:8, first:8, 100:108, 17, or a list of these."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lockstep.reference.checkpoint.errors import InputError, show

PLACE = re.compile(r"(first|last|[0-9]{1,12}):([0-9]{1,12})|([0-9]{1,12})")
WANTED = "last:8, first:8, 100:108, 17, or a list of these"


def check_places(text: str, name: str = "at") -> None:
    """Raise InputError if this names no tokens, before any prompt is at hand.

    `name` is what the caller calls it, and what the error says.
    """
    if not isinstance(text, str):
        raise InputError(name, f"{show(text, 40)}, but should be a text such as 'last:8'")
    for part in text.split(","):
        found = PLACE.fullmatch(part)
        if found is None:
            raise InputError(name, f"{show(part, 40)}, but should be {WANTED}")
        if found[1] and int(found[2]) <= (int(found[1]) if found[1].isdigit() else 0):
            raise InputError(name, f"{show(part, 40)} names no token")


def places_in(text: str, lengths: Sequence[int], name: str = "at") -> list[list[int]]:
    """Return the positions of each prompt that `text` names, in their order, none twice.

    `lengths` are those of the prompts. Of a prompt that is shorter than `last:8` or `first:8` it is
    all tokens. `name` is what the caller calls `text`.
    Raises: InputError, under this name, if a prompt has no such position.
    """
    check_places(text, name)
    rows = []
    for row, length in enumerate(lengths):
        which = f"row {row}" if len(lengths) > 1 else "the prompt"
        some = {one for part in text.split(",") for one in span(part, length, which, name)}
        rows.append(sorted(some))
    return rows


def span(part: str, length: int, which: str, name: str) -> range:
    """Return what one part of the list names in a prompt of so many tokens."""
    begin, _, end = part.partition(":")
    if begin == "first":
        return range(min(int(end), length))
    if begin == "last":
        return range(max(length - int(end), 0), length)
    found = range(int(begin), int(end) if end else int(begin) + 1)
    if found.stop > length:
        held = f"{which} has the positions 0 to {length - 1}"
        raise InputError(name, f"{part}, but {held}")
    return found
