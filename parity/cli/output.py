"""Where a command's result goes: text for a person, JSON for a program."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any


def emit(options: Namespace, document: Callable[[], Any], text: Callable[[], str]) -> None:
    """Print the text; write the JSON where --json says. `--json -` prints the JSON alone."""
    if options.json is not None:
        body = json.dumps(document(), indent=2, ensure_ascii=True, allow_nan=False)
        if options.json == "-":
            print(body)
            return
        Path(options.json).write_text(body + "\n", encoding="utf-8")
    print(text())


def printable(text: str) -> str:
    """Return text in which nothing but line breaks and tabs can steer a terminal."""
    from lockstep.reference.checkpoint.errors import escape

    return "".join(char if char in "\n\t" else escape(char) for char in text)


def warn(lines: list[str]) -> None:
    """Print one warning line on standard error, whatever the number of warnings."""
    if lines:
        from lockstep.reference.checkpoint.errors import escape

        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        print(f"lockstep: warning: {escape(lines[0])}{more}", file=sys.stderr)


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
