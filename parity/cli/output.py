"""Where a command's result goes: text for a person, JSON for a program."""

import json
import os
import re
import sys
import unicodedata
from argparse import Namespace
from collections.abc import Callable, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any

NARROW = 24  # columns of a terminal that a column of text wants at least
MANY = 4  # columns behind the first
# What joins letters in Persian or Hindi, and the parts of an emoji.
JOINERS = "\u200c\u200d"
# A line that begins so, or has ##[ anywhere, is a command to GitHub's runner.
COMMAND = re.compile(r"^([^\S\n]*):(?=:)|#(?=#\[)", re.MULTILINE)


def emit(
    options: Namespace, document: Callable[[], Any], text: Callable[[], str], *, fold: bool = True
) -> None:
    """Print the text; write the JSON where --json says. `--json -` prints the JSON alone.

    On a terminal lines are as long as it is wide. A pipe gets them whole, and so does a text whose
    lines mean something to what reads it: `fold` is false.
    """
    shown = fitted if fold else str
    if options.json is None:
        return put(shown(text()))
    body = json.dumps(document(), indent=2, ensure_ascii=True, allow_nan=False)
    if options.json == "-":
        return put(body)
    write(Path(options.json), body + "\n")
    return put(shown(text()))


def put(text: str) -> None:
    """Print a result. A reader that has gone away changes nothing: the exit code still tells."""
    if not text:
        return
    try:
        print(text, flush=True)
    except BrokenPipeError:
        silence()


def fitted(text: str) -> str:
    """Return text that fits the terminal it is printed on; as it is if that is none."""
    from shutil import get_terminal_size

    if sys.stdout is None or not sys.stdout.isatty():
        return text
    width = max(get_terminal_size().columns, 2 * NARROW)
    return "\n".join(line if len(line) <= width else folded(line, width)
                     for line in text.split("\n"))  # fmt: skip


def folded(line: str, width: int) -> str:
    """Return a line over several: what is over stands below its last column that leaves room.

    A row of many columns holds figures, not a text in its last one: it goes on at the left.
    """
    from textwrap import fill

    listed = re.match(r" *[0-9]+\. ", line)
    indent = listed.end() if listed else len(line) - len(line.lstrip()) + 2
    starts = [found.end() for found in re.finditer(r"(?<=\S) {2,}", line)]
    texts = starts if len(starts) < MANY else []
    under = max([indent, *(start for start in texts if start <= width - NARROW)])
    return fill(line, width, subsequent_indent=" " * under, break_long_words=False,
                break_on_hyphens=False, expand_tabs=False, replace_whitespace=False)  # fmt: skip


def silence() -> None:
    """Let standard output lead nowhere, so that nothing fails again when Python closes it."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write(path: Path, text: str) -> None:
    """Put a whole text file in place of what was there; a device or a pipe is written to.

    Raises: InputError, which names the file itself, if it cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    from lockstep.reference.checkpoint.errors import InputError

    try:
        replace(path, text)
    except OSError as error:
        raise InputError(path, f"cannot be written: {error.strerror or error}") from None


def replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def printable(text: str) -> str:
    """Return text in which nothing but line breaks and tabs can steer a terminal, nor a CI run."""
    from lockstep.reference.checkpoint.errors import escape

    plain = "".join(char if harmless(char) else escape(char) for char in text)
    return COMMAND.sub(lambda found: f"{found[1]}\\x3a" if found[1] is not None else "\\x23", plain)


def harmless(char: str) -> bool:
    return char.isprintable() or char in "\n\t" + JOINERS or unicodedata.category(char) == "Zs"


def counted(things: int | Sized, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 token", "2 tokens", "2 matrices"."""
    number = things if isinstance(things, int) else len(things)
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def warn(lines: list[str]) -> None:
    """Print one warning line on standard error, whatever the number of warnings."""
    if lines:
        from lockstep.reference.checkpoint.errors import clip_end, escape

        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        print(f"lockstep: warning: {clip_end(escape(lines[0]), 360)}{more}", file=sys.stderr)


def table(rows: list[tuple[str, ...]], *, right: frozenset[int] = frozenset()) -> str:
    """Lay out rows in columns; those numbered in `right` are aligned to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def in_units(count: float) -> str:
    """Return a number of bytes with the unit that suits it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
