"""Which regular expressions of a tokenizer.json are safe to run.

The regular expressions of tokenizers split text at letters, digits and spaces; none needs to repeat
a group. A repeated group is what makes a backtracking engine take exponential time, so none passes.
"""

from __future__ import annotations

import re
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError, show

PATTERN_CHARS = 8192
MOST_REPEATS = 1000
REPEAT = re.compile(r"\?*(?:\*|\+|\{(\d*)(?:,(\d*))?\})")
# \1 and \k<name> look back, \g<name> and (?R) recurse.
REFERENCE = re.compile(r"\\[1-9kg]|\(\?[R&]")


def check_pattern(pattern: str, path: Path) -> None:
    """Raise InputError for a pattern that is too long, refers to itself, or repeats a group."""
    if len(pattern) > PATTERN_CHARS:
        what = f"pattern of {len(pattern)} characters is over the limit of {PATTERN_CHARS}"
        raise InputError(path, what)
    place = 0
    while place < len(pattern):
        closes_group = pattern[place] == ")"
        if REFERENCE.match(pattern, place):
            raise InputError(path, f"unsupported pattern {show(pattern)}: it has a reference")
        place = _skip(pattern, place)
        repeat = REPEAT.match(pattern, place)
        if repeat is None:
            continue
        if closes_group:
            raise InputError(path, f"unsupported pattern {show(pattern)}: it repeats a group")
        if any(len(n) > 4 or int(n) > MOST_REPEATS for n in repeat.groups() if n):
            raise InputError(path, f"unsupported pattern {show(pattern)}: it repeats too often")


def _skip(pattern: str, place: int) -> int:
    """Return the place after one escape, character class or other character."""
    if pattern[place] == "\\":
        return place + 2
    if pattern[place] != "[":
        return place + 1
    depth = 0
    while place < len(pattern):
        depth += {"[": 1, "]": -1}.get(pattern[place], 0)
        place += 2 if pattern[place] == "\\" else 1
        if depth == 0:
            break
    return place
